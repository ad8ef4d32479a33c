// Tables that answer: sorted by a click on a header, searched.
// A table of thousands of rows stays quick because few of them are in the document: the others wait in an array.

"use strict";

(() => {
  const FIRST = 100;
  const MORE = 500;
  const UNITS = {
    ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600,
    KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50,
    k: 1e3, M: 1e6, G: 1e9, T: 1e12,
  };
  const QUANTITY = /^([<>]?)\s*([+-]?(?:[\d,]*\.?\d+(?:e[+-]?\d+)?|inf))\s*([a-zA-Z]*)/;
  const collator = new Intl.Collator("en", { numeric: true });

  // Return the number that a cell begins with, in base units; undefined where there is none.
  function numberIn(cell) {
    const found = QUANTITY.exec(cell.textContent.trim());
    if (!found) return undefined;
    const value = Number(found[2].replaceAll(",", "").replace("inf", "Infinity")) * (UNITS[found[3]] ?? 1);
    return found[1] ? value * (found[1] === ">" ? 1 + 1e-9 : 1 - 1e-9) : value;
  }

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    Object.assign(made, attributes);
    made.append(...children);
    return made;
  }

  function enhance(table) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    const titles = heads.map((head) => head.textContent);
    const region = table.closest(".scroll");
    const noun = table.dataset.sortable;
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const sortKeys = new Map(); // by column, made when first asked for
    let limit = FIRST;
    let sort = ""; // a title, behind "-" when descending

    // Return what each row is sorted by in a column: its number, or its text; undefined where a number is missing.
    function keysIn(place) {
      if (!sortKeys.has(place)) {
        const cells = rows.map((row) => row.cells[place]);
        const isText = heads[place].classList.contains("text");
        sortKeys.set(place, cells.map((cell) => (isText ? cell.textContent : numberIn(cell))));
      }
      return sortKeys.get(place);
    }

    // Sort row numbers as chosen: stable, what is undefined last in either direction.
    function sorted(numbers) {
      const place = titles.indexOf(sort.replace(/^-/, ""));
      for (const head of heads) head.removeAttribute("aria-sort");
      if (place < 0) return numbers;
      heads[place].setAttribute("aria-sort", sort.startsWith("-") ? "descending" : "ascending");
      const keys = keysIn(place);
      const sign = sort.startsWith("-") ? -1 : 1;
      const order = (one, other) => (typeof one === "string" ? collator.compare(one, other) : one - other);
      const defined = numbers.filter((number) => keys[number] !== undefined);
      const rest = numbers.filter((number) => keys[number] === undefined);
      return [...defined.sort((one, other) => sign * order(keys[one], keys[other])), ...rest];
    }

    // Show the rows that every word of the search lets through, the first of them unless all were asked for.
    function show() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const numbers = sorted([...rows.keys()].filter((number) => words.every((word) => texts[number].includes(word))));
      const visible = numbers.slice(0, limit);
      body.replaceChildren(...visible.map((number) => rows[number]));
      const written = (count) => count.toLocaleString("en");
      const matching = words.length ? `${written(numbers.length)} of ${written(rows.length)} ${noun} match` : `${written(rows.length)} ${noun}`;
      const hidden = numbers.length - visible.length;
      status.textContent = matching + (hidden ? `, the first ${written(visible.length)} are shown` : "");
      more.hidden = !hidden;
      more.textContent = `Show ${written(Math.min(hidden, MORE))} more`;
    }

    const search = element("input", { type: "search", spellcheck: false });
    search.addEventListener("input", () => {
      limit = FIRST;
      show();
    });
    const status = element("p", { className: "quiet" });
    status.setAttribute("role", "status");
    const more = element("button", { type: "button", className: "more" });
    more.addEventListener("click", () => {
      limit += MORE;
      show();
      region.focus({ preventScroll: true });
    });
    region.before(element("div", { className: "controls" }, element("label", {}, "search", search)), status);
    region.after(more);
    heads.forEach((head, place) => {
      const button = element("button", { type: "button" }, ...head.childNodes);
      // up, down, and back to the order in which the table came
      button.addEventListener("click", () => {
        const title = titles[place];
        sort = sort === title ? `-${title}` : sort === `-${title}` ? "" : title;
        show();
      });
      head.append(button);
    });

    show();
    table.dataset.ready = "";
    for (const [event, rowsPrinted] of [["beforeprint", Infinity], ["afterprint", FIRST]]) {
      addEventListener(event, () => {
        limit = rowsPrinted;
        show();
      });
    }
  }

  for (const table of document.querySelectorAll("table[data-sortable]")) enhance(table);
})();
