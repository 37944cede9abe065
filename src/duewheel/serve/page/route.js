// What is shown, in the part of the address behind `#`: it can be linked to, the back button works,
// and unlike a query it is never sent, so that no log has ids and keys.

const VIEWS = [...document.querySelectorAll("nav [data-view]")].map(({ dataset }) => dataset.view);
const listeners = [];

/** The view, and its parameters. */
export function route() {
  const [view, query = ""] = location.hash.slice(1).split("?");
  return {
    view: VIEWS.includes(view) ? view : VIEWS[0],
    parameters: Object.fromEntries(new URLSearchParams(query)),
  };
}

/** Changes parameters of the view; null takes one out. */
export function change(parameters, { view = route().view } = {}) {
  const before = view === route().view ? route().parameters : {};
  const merged = Object.entries({ ...before, ...parameters });
  const query = new URLSearchParams(merged.filter(([, value]) => value !== null && value !== ""));
  const hash = `#${view}${query.size ? `?${query}` : ""}`;
  if (hash === location.hash) {
    return;
  }
  history.pushState(null, "", hash);
  tell();
}

/** Calls `listener` now and after each change. */
export function onRoute(listener) {
  listeners.push(listener);
  listener(route());
}

function tell() {
  const present = route();
  listeners.forEach((listener) => listener(present));
}

// Of links and of the back button.
addEventListener("popstate", tell);
