// The view, in the part of the address after `#`: it can be linked to, the back button works, and
// the page is loaded without it. A search sends ids and keys to the API as a query.

const VIEWS = [...document.querySelectorAll("nav [data-view]")].map(({ dataset }) => dataset.view);
let listener = () => {};

/** The view, and its parameters. */
export function route() {
  const [view, query = ""] = location.hash.slice(1).split("?");
  return {
    view: VIEWS.includes(view) ? view : VIEWS[0],
    parameters: Object.fromEntries(new URLSearchParams(query)),
  };
}

/** Changes parameters of the view; null takes one out. */
export function change(parameters) {
  const { view, parameters: before } = route();
  const merged = Object.entries({ ...before, ...parameters });
  const query = new URLSearchParams(merged.filter(([, value]) => value !== null && value !== ""));
  const hash = `#${view}${query.size ? `?${query}` : ""}`;
  if (hash !== location.hash) {
    history.pushState(null, "", hash);
    tell();
  }
}

/** The address of this server's own page: this one may be that of another shard by it. */
export const root = () => location.pathname.replace(/shards\/\d+\/$/, "");

/** Calls one function now and after each change. */
export function onRoute(called) {
  listener = called;
  tell();
}

const tell = () => listener(route());

// Of links and of the back button.
addEventListener("popstate", tell);
