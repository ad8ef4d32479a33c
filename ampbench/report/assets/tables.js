// Tables that answer: sorted by a click on a header, searched, filtered. What was chosen is kept in the address.
// A table of thousands of rows stays quick because few of them are in the document: the others wait in an array. Where
// all are asked for, they stand in blocks, which a browser lays out when they come near the window: as a single table of
// thousands of rows they would take it seconds, and again for every change. It finds, links and copies them all the same.

(() => {
  const FIRST = 100;
  const MORE = 500;
  const BLOCK = 250; // rows; where several blocks of them are shown, columns keep the widths that they had
  const TYPING = 300; // milliseconds without a key after which the search goes into the address
  const UNITS = {
    ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600,
    KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50,
    k: 1e3, M: 1e6, G: 1e9, T: 1e12,
  };
  const QUANTITY = /^([<>]?)\s*([+-]?(?:[\d,]*\.?\d+(?:e[+-]?\d+)?|inf))\s*([a-zA-Z]*)/;
  const collator = new Intl.Collator("en", { numeric: true });

  // Return the number that a cell begins with, in base units; undefined where there is none.
  function numberIn(cell) {
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v.replace("inf", "Infinity"));
    const found = QUANTITY.exec(cell.textContent.trim());
    if (!found) return undefined;
    const value = Number(found[2].replaceAll(",", "").replace("inf", "Infinity")) * (UNITS[found[3]] ?? 1);
    return found[1] ? value * (found[1] === ">" ? 1 + 1e-9 : 1 - 1e-9) : value;
  }

  // Return what each row is sorted by in a column: numbers, or places in the column's own order or the alphabet's.
  function keysOf(rows, head, place) {
    if (head.dataset.order) {
      const order = head.dataset.order.split("|");
      return rows.map((row) => {
        const found = order.indexOf((row.dataset[head.dataset.key] ?? "").split("|")[0]);
        return found < 0 ? undefined : found;
      });
    }
    // the reason of a failure takes the place of several cells, and has no place among numbers
    const cells = rows.map((row) => (row.cells[place]?.colSpan === 1 ? row.cells[place] : undefined));
    if (!head.classList.contains("text")) return cells.map((cell) => cell && numberIn(cell));
    const texts = cells.map((cell) => cell?.textContent);
    const known = [...new Set(texts)].filter((text) => text !== undefined).sort(collator.compare);
    const places = new Map(known.map((text, rank) => [text, rank]));
    return texts.map((text) => places.get(text));
  }

  function textsOf(rows) {
    return rows.map((row) => `${row.textContent} ${row.cells[0].title}`.toLowerCase());
  }

  function written(count) {
    return count.toLocaleString("en");
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
    const region = table.closest(".scroll") ?? table;
    const noun = table.dataset.sortable || "rows";
    const sortKeys = new Map(); // by column, made when first asked for or when there is time
    const widths = element("style"); // of the columns, where rows stand in blocks
    let texts = null; // of the rows, made when first asked for or when there is time
    let chosen = {};
    let limit = FIRST;

    const offered = (table.dataset.filters ?? "").split(" ").filter(Boolean); // where the rows differ in them
    const filters = offered.map((name) => {
      const present = new Set(rows.flatMap((row) => row.dataset[name]?.split("|") ?? []));
      const order = heads.find((head) => head.dataset.key === name)?.dataset.order?.split("|") ?? [...present];
      return { name, values: order.filter((value) => present.has(value)) };
    }).filter(({ values }) => values.length > 1);
    const names = ["q", ...filters.map(({ name }) => name), "sort"];

    // Return the numbers of the rows that all filters and every word of the search let through.
    function matching() {
      const words = chosen.q.toLowerCase().split(/\s+/).filter(Boolean);
      if (words.length) texts ??= textsOf(rows);
      const active = filters.filter(({ name }) => chosen[name]);
      const passes = (number) => (
        words.every((word) => texts[number].includes(word))
        && active.every(({ name }) => rows[number].dataset[name]?.split("|").includes(chosen[name]))
      );
      return [...rows.keys()].filter(passes);
    }

    function keysIn(place) {
      const key = heads[place].dataset.key;
      if (key && !sortKeys.has(key)) sortKeys.set(key, keysOf(rows, heads[place], place));
      return sortKeys.get(key);
    }

    // Sort row numbers as chosen: stable, what is undefined last in either direction.
    function sorted(numbers) {
      const falling = chosen.sort.startsWith("-");
      const key = chosen.sort.slice(falling ? 1 : 0);
      const place = heads.findIndex((head) => head.dataset.key === key);
      for (const head of heads) head.removeAttribute("aria-sort");
      table.toggleAttribute("data-sorted", place >= 0);
      if (place < 0) return numbers;
      heads[place].setAttribute("aria-sort", falling ? "descending" : "ascending");
      const keys = keysIn(place);
      const defined = numbers.filter((number) => keys[number] !== undefined);
      const rest = numbers.filter((number) => keys[number] === undefined);
      const sign = falling ? -1 : 1;
      return [...defined.sort((one, other) => sign * (keys[one] - keys[other] || 0)), ...rest];
    }

    // Put rows into the document.
    function place(shown) {
      if (shown.length > MORE + FIRST) {
        if (!widths.isConnected) freeze();
        const blocks = [];
        for (let start = BLOCK; start < shown.length; start += BLOCK) {
          blocks.push(element("tbody", {}, ...shown.slice(start, start + BLOCK)));
        }
        body.replaceChildren(...shown.slice(0, BLOCK));
        for (const old of [...table.tBodies].slice(1)) old.remove();
        body.after(...blocks);
      } else {
        widths.remove();
        for (const old of [...table.tBodies].slice(1)) old.remove();
        body.replaceChildren(...shown);
      }
      table.classList.toggle("blocks", widths.isConnected);
    }

    // Keep columns as wide as they are, and let a block of rows be as high as so many are until it is laid out.
    function freeze() {
      const named = `[data-sortable="${table.dataset.sortable}"].blocks`;
      const wide = heads.map((head) => head.getBoundingClientRect().width);
      const high = BLOCK * body.getBoundingClientRect().height / Math.max(body.rows.length, 1);
      const rules = wide.map((width, place) => (
        `${named} tr > :nth-child(${place + 1}):not([colspan]) { min-width: ${width}px; max-width: ${width}px; }`
      ));
      const whole = wide.reduce((sum, width) => sum + width, 0);
      rules.push(`${named} > * { width: ${whole}px; contain-intrinsic-size: auto ${whole}px auto ${high}px; }`);
      widths.textContent = `@media screen { ${rules.join("\n")} }`;
      region.before(widths);
    }

    function show() {
      const numbers = sorted(matching());
      const visible = numbers.slice(0, limit);
      place(visible.map((number) => rows[number]));
      const counted = numbers.length < rows.length
        ? `${written(numbers.length)} of ${written(rows.length)} ${noun} match`
        : `${written(rows.length)} ${noun}`;
      const cut = visible.length < numbers.length ? `, the first ${written(visible.length)} are shown` : "";
      status.textContent = counted + cut;
      const left = numbers.length - visible.length;
      more.hidden = left <= MORE;
      all.hidden = left === 0;
      all.textContent = `Show all ${written(numbers.length)}`;
      clear.hidden = !names.some((name) => name !== "sort" && chosen[name]);
    }

    // Take over what the address says; what is not known here leaves it.
    function read() {
      const sort = state.get("sort");
      chosen = { sort: heads.some((head) => head.dataset.key === sort.replace(/^-/, "")) ? sort : "" };
      for (const [name, control] of controls) {
        control.value = state.get(name);
        chosen[name] = control.value;
      }
      limit = FIRST;
      show();
      for (const name of [...names, ...offered]) state.set(name, chosen[name] ?? "");
    }

    // Choose one value of a filter and nothing else, and go there, so that Back leads back.
    // Bring a row that something links to into the document: alone, for it may be the thousandth.
    function reveal(hash) {
      const row = rows.find(({ id }) => id && `#${id}` === hash);
      if (!row || row.isConnected) return;
      for (const [name, control] of controls) chosen[name] = control.value = "";
      chosen.q = search.value = row.cells[0].title || row.cells[0].textContent;
      show();
      row.scrollIntoView();
    }

    function choose(name, value) {
      chosen[name] = value;
      limit = FIRST;
      show();
      state.set(name, value);
    }

    const controls = new Map();
    const search = element("input", { type: "search", spellcheck: false });
    let typing = 0;
    search.addEventListener("input", () => {
      chosen.q = search.value;
      limit = FIRST;
      show();
      clearTimeout(typing);
      typing = setTimeout(() => state.set("q", search.value), TYPING);
    });
    controls.set("q", search);
    for (const { name, values } of filters) {
      const select = element("select", {}, new Option("all", ""), ...values.map((value) => new Option(value, value)));
      select.addEventListener("change", () => choose(name, select.value));
      controls.set(name, select);
    }
    const clear = element("button", { type: "button" }, "Show everything");
    clear.addEventListener("click", () => {
      clearTimeout(typing);
      for (const [name, control] of controls) {
        control.value = chosen[name] = "";
        state.set(name, "");
      }
      choose("sort", chosen.sort);
      search.focus();
    });
    const bar = element("div", { className: "controls" });
    for (const [name, control] of controls) bar.append(element("label", {}, name === "q" ? "search" : name, control));
    bar.append(clear);

    const status = element("p", { className: "quiet" });
    status.setAttribute("role", "status");
    const more = element("button", { type: "button" }, `Show ${MORE} more`);
    const all = element("button", { type: "button" });
    for (const [button, rowsMore] of [[more, MORE], [all, Infinity]]) {
      button.addEventListener("click", () => {
        limit += rowsMore;
        show();
        if (button.hidden) region.focus({ preventScroll: true });
      });
    }
    region.before(bar, status);
    region.after(element("div", { className: "more" }, more, all));

    for (const head of heads) {
      if (!head.dataset.key) continue;
      const button = element("button", { type: "button" }, ...head.childNodes);
      // up, down, and back to the order in which the table came
      button.addEventListener("click", () => {
        const key = head.dataset.key;
        choose("sort", chosen.sort === key ? `-${key}` : chosen.sort === `-${key}` ? "" : key);
      });
      head.append(button);
    }

    state.watch((name) => {
      const changed = name ? names.filter((one) => one === name) : names;
      if (changed.some((one) => state.get(one) !== chosen[one])) read();
    });
    read();
    table.dataset.ready = "";
    if (state.linked && names.some((name) => chosen[name])) table.closest("section").scrollIntoView();
    reveal(location.hash);
    addEventListener("hashchange", () => reveal(location.hash));
    const idle = window.requestIdleCallback ?? setTimeout;
    const ahead = [() => { texts ??= textsOf(rows); }, ...heads.map((head, number) => () => keysIn(number))];
    const prepare = () => {
      ahead.shift()();
      if (ahead.length) idle(prepare);
    };
    idle(prepare);
    for (const [event, rowsPrinted] of [["beforeprint", Infinity], ["afterprint", FIRST]]) {
      addEventListener(event, () => {
        limit = rowsPrinted;
        show();
      });
    }
    // before the browser follows the link, so that it finds the row
    document.addEventListener("click", (event) => reveal(event.target.closest("a[href^='#']")?.hash));
  }

  for (const table of document.querySelectorAll("table[data-sortable]")) enhance(table);
})();
