// What the reader chose, kept in the address behind "#", so that a link shows the same: "#precision=fp32&sort=-time".
// A fragment without "=" is the anchor of a section, as without JavaScript.
"use strict";

const state = (() => {
  const listeners = [];
  let values = read();

  function read() {
    const fragment = location.hash.slice(1);
    return fragment.includes("=") ? new URLSearchParams(fragment) : new URLSearchParams();
  }

  // Return the value of a name, "" where nothing was chosen.
  function get(name) {
    return values.get(name) ?? "";
  }

  // Choose a value, "" for none; the address follows without a new entry in the history.
  function set(name, value) {
    if (get(name) === value) return;
    if (value) values.set(name, value);
    else values.delete(name);
    const text = values.toString();
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
    for (const listener of listeners) listener(name);
  }

  // Call `listener(name)` when a value changes; with "" when the address did, so that any may have.
  function watch(listener) {
    listeners.push(listener);
  }

  addEventListener("hashchange", () => {
    if (location.hash && !location.hash.includes("=")) return;
    values = read();
    for (const listener of listeners) listener("");
  });
  return { get, set, watch };
})();
