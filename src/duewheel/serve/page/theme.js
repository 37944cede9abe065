// The switch between light, dark and the system's choice. Loaded before the first paint, so that
// no page in the wrong colours flashes up.

const NAME = "duewheel-theme";

/** Applies a theme: "light", "dark", or "" for the system's. */
function apply(theme) {
  if (theme) {
    document.documentElement.dataset.theme = theme;
  } else {
    delete document.documentElement.dataset.theme;
  }
}

/** Returns the theme that was chosen earlier. Storage may be refused: then there is none. */
function stored() {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

function store(theme) {
  try {
    localStorage.setItem(NAME, theme);
  } catch {
    // it holds until the page is closed
  }
}

/** Connects the switch. */
export function connectTheme(select) {
  select.value = stored();
  select.addEventListener("change", () => {
    apply(select.value);
    store(select.value);
  });
}

apply(stored());
