// The switch between light, dark and the system's choice. Loaded before the first paint, so that
// no page in the wrong colours flashes up.

const NAME = "duewheel-theme";

/** Applies a theme: "light", "dark", or "" for the system's. */
function apply(theme) {
  document.documentElement.dataset.theme = theme;
}

/** Uses the storage of the browser, which may be refused: then a theme holds until the page is closed. */
function stored(use) {
  try {
    return use(localStorage) ?? "";
  } catch {
    return "";
  }
}

const chosen = () => stored((storage) => storage.getItem(NAME));

/** Connects the switch. */
export function connectTheme(select) {
  select.value = chosen();
  select.addEventListener("change", () => {
    apply(select.value);
    stored((storage) => storage.setItem(NAME, select.value));
  });
}

apply(chosen());
