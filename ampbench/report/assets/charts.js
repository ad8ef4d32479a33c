// Draws the charts again so that they answer: values under the pointer, zoom, a choice of what is drawn.
// The library and the data are unpacked when the first chart comes near the window.

(() => {
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const payload = document.getElementById("payload");
  if (!figures.length || !payload || !("DecompressionStream" in window)) return;

  // A finger that swipes over a chart moves the page, not the chart's data.
  const ZOOMS = matchMedia("(pointer: fine)").matches;
  const ZOOM = {
    name: "zoom",
    select: { type: "interval", zoom: "wheel![event.ctrlKey]" },
    bind: "scales",
  };
  // `ast`: expressions are interpreted, not compiled, which the page's policy would refuse.
  // `logLevel` 1: errors alone; Vega also warns of a layer without data, such as intervals where there are none.
  const OPTIONS = { ast: true, actions: false, renderer: "svg", logLevel: 1, tooltip: { theme: "custom" } };
  // Pixels of an axis without a size of its own, of its title and ticks, of a symbol in a legend, of a character there,
  // between its columns.
  const AXIS = 40, TICKS = 16, SYMBOL = 24, CHARACTER = 7, APART = 12;
  const results = new Map(); // what Vega-Embed made, by figure
  let loading = null;
  let queue = Promise.resolve();

  async function unpacked(id) {
    const text = document.getElementById(id).textContent;
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  // Return specifications and data, once the library has run. Its script is one that the page's policy knows by digest.
  function load() {
    loading ??= (async () => {
      const { file } = document.getElementById("library").dataset; // that of a site; a page alone holds it
      const data = await unpacked("payload");
      const script = document.createElement("script");
      if (!file) script.textContent = await unpacked("library");
      const loaded = file && new Promise((resolve, reject) => {
        Object.assign(script, { src: file, onload: resolve, onerror: reject });
      });
      document.head.append(script);
      await loaded;
      return JSON.parse(data);
    })();
    loading.catch(() => document.documentElement.classList.remove("live"));
    return loading;
  }

  function rowsOf(columns, field, value) {
    const names = Object.keys(columns);
    const count = names.length ? columns[names[0]].length : 0;
    const rows = [];
    for (let number = 0; number < count; number += 1) {
      if (field && columns[field][number] !== value) continue;
      rows.push(Object.fromEntries(names.map((name) => [name, columns[name][number]])));
    }
    return rows;
  }

  // Let the axes that count be zoomed, where there is a mouse; one of names cannot.
  function zoomable(spec) {
    if (!ZOOMS) return spec;
    const parts = [spec, ...(spec.layer ?? [])];
    const counts = (axis) => parts.some((part) => ["quantitative", "temporal"].includes(part.encoding?.[axis]?.type));
    const encodings = ["x", "y"].filter(counts);
    if (!encodings.length) return spec;
    const layers = spec.layer;
    const params = [{ ...ZOOM, select: { ...ZOOM.select, encodings } }];
    if (!layers) return { ...spec, params: [...(spec.params ?? []), ...params] };
    return { ...spec, layer: [{ ...layers[0], params: [...(layers[0].params ?? []), ...params] }, ...layers.slice(1)] };
  }

  // Let legends list `marks` alone, those that are drawn, all they have where there are none: side by side as many as
  // fit into `width` pixels.
  function listing(spec, marks, width) {
    const room = width - (spec.encoding?.y?.axis?.minExtent ?? AXIS) - TICKS; // a legend begins right of the axis
    const channels = Object.entries(spec.encoding ?? {}).map(([name, channel]) => {
      const names = marks.length ? marks : channel.scale?.domain ?? [];
      if (!channel.legend || !names.length) return [name, channel];
      const values = marks.length ? { values: marks } : {};
      const wanted = channel.legend.columns ?? names.length;
      const each = SYMBOL + CHARACTER * Math.max(...names.map((one) => String(one).length)) + APART;
      const fitting = Math.max(1, Math.floor(room / each));
      const columns = fitting < wanted ? { columns: fitting, columnPadding: APART } : {};
      return [name, { ...channel, legend: { ...channel.legend, ...values, ...columns } }];
    });
    const layers = spec.layer?.map((layer) => listing(layer, marks, width));
    return {
      ...spec,
      ...(channels.length ? { encoding: Object.fromEntries(channels) } : {}),
      ...(layers ? { layer: layers } : {}),
    };
  }

  async function draw(figure) {
    const { charts, datasets } = await load();
    const id = figure.dataset.chart;
    const chart = charts[id];
    const chosen = chart.choose ? chosenOf(id, chart) : "";
    const choice = chart.choices.find(([value]) => value === chosen);
    const values = rowsOf(datasets[chart.dataset], chart.choose, chosen);
    const drawing = figure.querySelector(".drawing");
    const holder = document.createElement("div");
    const inside = document.createElement("div"); // Vega-Embed calls what it draws in "Vega visualization"
    inside.setAttribute("aria-hidden", "true");
    holder.setAttribute("role", "img");
    holder.append(inside);
    drawing.classList.add("live");
    drawing.append(holder);
    try {
      const legends = listing(chart.spec, choice?.[3] ?? [], drawing.clientWidth);
      const spec = { ...zoomable(legends), width: "container", data: { values } };
      const result = await vegaEmbed(inside, spec, OPTIONS);
      results.get(figure)?.finalize();
      results.set(figure, result);
    } catch (error) {
      holder.remove();
      drawing.classList.toggle("live", results.has(figure));
      throw error;
    }
    for (const old of [...drawing.children]) if (old !== holder) old.remove();
    const words = figure.querySelector(".alt");
    if (choice) words.querySelector("span").textContent = choice[2];
    const title = figure.querySelector("figcaption").textContent.trim();
    holder.setAttribute("aria-label", `${title}. ${words.textContent.trim()}`);
    figure.dataset.drawn = chosen || "all";
  }

  // Draw one after the other, so that the last choice is what stays; where drawing fails, the SVG of the file stays.
  function redraw(figure) {
    queue = queue.then(() => offer(figure)).then(() => draw(figure)).catch((error) => {
      console.error(`chart ${figure.dataset.chart} stays as it was drawn before:`, error);
    });
  }

  function chosenOf(id, chart) {
    const wanted = state.get(id);
    if (chart.choices.some(([value]) => value === wanted)) return wanted;
    state.set(id, ""); // what is not known here leaves the address
    return chart.choices[0]?.[0] ?? "";
  }

  // Put a choice of what is drawn above a chart that has one.
  async function offer(figure) {
    const { charts } = await load();
    const id = figure.dataset.chart;
    const chart = charts[id];
    if (!chart.choose || chart.choices.length < 2 || figure.querySelector("select")) return;
    const label = document.createElement("label");
    label.append("Show ");
    const select = document.createElement("select");
    for (const [value, text] of chart.choices) select.add(new Option(text, value));
    select.value = chosenOf(id, chart);
    select.addEventListener("change", () => state.set(id, select.value));
    label.append(select);
    const controls = document.createElement("div");
    controls.className = "controls";
    controls.append(label);
    figure.querySelector(".drawing").before(controls);
  }

  const watched = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watched.unobserve(entry.target);
      redraw(entry.target);
    }
  }, { rootMargin: "200px" });
  document.documentElement.classList.add("live"); // what needs charts that answer may be offered
  for (const figure of figures) {
    watched.observe(figure);
    if (state.linked && state.get(figure.dataset.chart)) figure.scrollIntoView();
  }

  state.watch((name) => {
    for (const figure of figures) {
      const id = figure.dataset.chart;
      if (figure.dataset.drawn === undefined || (name && name !== id)) continue;
      const select = figure.querySelector("select");
      if (!select) continue;
      load().then(({ charts }) => {
        const chosen = chosenOf(id, charts[id]);
        if (chosen === figure.dataset.drawn) return;
        select.value = chosen;
        redraw(figure);
      });
    }
  });
})();
