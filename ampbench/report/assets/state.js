// What the reader chose, kept in the address behind "#", so that a link shows the same: "#precision=fp32&sort=-time".
// A fragment without "=" is the anchor of a section, as without JavaScript.
"use strict";

const state = (() => {
  const listeners = [];
  // A link opens at what it chose; a reload, or Back, where the reader was.
  const linked = performance.getEntriesByType("navigation")[0]?.type === "navigate";
  let values = read();

  function read() {
    const fragment = location.hash.slice(1);
    return fragment.includes("=") ? new URLSearchParams(fragment) : new URLSearchParams();
  }

  // Return the value of a name, "" where nothing was chosen.
  function get(name) {
    return values.get(name) ?? "";
  }

  // Return the values as a fragment, with one of them changed where a name is given.
  function fragment(name, value) {
    const changed = new URLSearchParams(values);
    if (value) changed.set(name, value);
    else changed.delete(name);
    const text = changed.toString();
    return text && `#${text}`;
  }

  // Choose a value, "" for none; the address follows, without a new entry in the history unless `push` asks for one.
  function set(name, value, { push = false } = {}) {
    if (get(name) === value && !push) return;
    const address = fragment(name, value) || location.pathname + location.search;
    if (value) values.set(name, value);
    else values.delete(name);
    for (const listener of listeners) listener(name);
    try {
      history[push ? "pushState" : "replaceState"](null, "", address);
    } catch {
      // a frame in a sandbox, as viewers of artifacts show this file, has no address to keep it in
    }
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
  return { get, set, watch, fragment, linked };
})();
