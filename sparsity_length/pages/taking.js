// What is taken away: a link to the view, the target as CSV, the curve as SVG.

function save(content, kind, name) {
  const url = URL.createObjectURL(new Blob([content], { type: kind }));
  const link = element("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function fileName(ending) {
  const chunk = chosenChunk(), name = state.document.id.replace(/[^\p{L}\p{N}._-]+/gu, "-");
  return `${name}-${chunk.start + chunk.targets[state.target]}.${ending}`;
}

async function copyLink() {
  const link = location.href.replace(/#.*/, "") + addressOfView();
  try {
    await navigator.clipboard.writeText(link);
    at("taken").textContent = "The link to this view is copied.";
  } catch {
    at("taken").textContent = `The link to this view stands in the address.`;
  }
}

const CSV_COLUMNS = [
  "document", "target_position", "target", "model", "rule", "distant_context", "short_context_loss", "long_context_loss", "rank",
  "context_position", "distance", "token", "influence", "loss_with_first_tokens",
];

/** One row per token that a rule of a model ranks, of every model, rule and distant context. */
function csvRows() {
  const chunk = chosenChunk(), place = chunk.targets[state.target], index = state.target;
  const number = (value) => (value === null || value === undefined ? "" : (value * unit).toFixed(3));
  return Object.entries(chunk.models).flatMap(([model, measured]) => Object.entries(measured.rules).flatMap(([rule, ofRule]) => (
    ["own", "other_document"].filter((far) => far in ofRule).flatMap((far) => ofRule[far].distance[index].map((distance, rank) => {
      const kIndex = data.k.indexOf(rank + 1), of = ofRule[far];
      return [
        state.document.id, chunk.start + place, chunk.pieces[place], model, rule, far, number(measured.short[index]),
        number(measured.long[index]), rank + 1, chunk.start + place - distance, distance,
        "token" in of ? of.token[index][rank] : chunk.pieces[place - distance], number(of.influence[index][rank]),
        kIndex < 0 ? "" : number(of.loss[index][kIndex]),
      ];
    }))
  )));
}

/** A value of a CSV file; a text that a spreadsheet would compute begins with an apostrophe. */
function csvValue(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function saveCsv() {
  const lines = [CSV_COLUMNS, ...csvRows()].map((row) => row.map(csvValue).join(","));
  save(`${lines.join("\r\n")}\r\n`, "text/csv", fileName("csv"));
}

const SVG_STYLES = ["stroke", "stroke-width", "stroke-dasharray", "fill", "font-family", "font-size", "font-weight"];

/** The curve with its colours inside, so that it stands alone. */
function saveSvg() {
  const chart = at("chart"), copy = chart.cloneNode(true), copies = copy.querySelectorAll("*");
  chart.querySelectorAll("*").forEach((drawn, index) => {
    const style = getComputedStyle(drawn);
    for (const name of SVG_STYLES) copies[index].setAttribute(name, style.getPropertyValue(name));
    copies[index].removeAttribute("class");
  });
  copy.setAttribute("xmlns", SVG);
  copy.prepend(svgElement("title", {}, chart.getAttribute("aria-label")));
  save(new XMLSerializer().serializeToString(copy), "image/svg+xml", fileName("svg"));
}
