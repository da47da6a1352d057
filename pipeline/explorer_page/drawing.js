"use strict";
// What is drawn, from values alone. All text of documents goes in as text nodes or attributes, never as HTML.

const LONGEST_WORD = 60; // characters of a token in the table; the text itself shows it whole
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; children that are strings become text. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function svgElement(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

/** Nats with a true minus sign; null where nothing was measured. */
function nats(value, digits = 2) {
  return value === null ? "–" : value.toFixed(digits).replace("-", "−");
}

function signedNats(value, digits = 2) {
  return value > 0 ? `+${nats(value, digits)}` : nats(value, digits);
}

/** A token as a word of its own: blanks and characters without a shape get one. */
function visible(piece) {
  const shaped = piece
    .replace(/ /g, "␣")
    .replace(/\n/g, "↵")
    .replace(/[\u0000-\u001f]/g, (character) => String.fromCodePoint(0x2400 + character.codePointAt(0)))
    .replace(/[\p{Cf}\p{Zl}\p{Zp}\u007f-\u009f]/gu, (character) => `‹U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
  const characters = Array.from(shaped);
  return characters.length > LONGEST_WORD ? `${characters.slice(0, LONGEST_WORD).join("")}…` : shaped;
}

/** Whether a token could be seen, or clicked, only with a sign of ours: nothing but bytes, controls and accents. */
function isShapeless(piece) {
  return /^[\p{C}\p{M}\p{Zl}\p{Zp}]*$/u.test(piece) && !/[\n\t]/.test(piece);
}

/** The token at a place of a chunk, in words: a token of first bytes only names the character it is part of. */
function word(pieces, place) {
  if (pieces[place] !== "") return visible(pieces[place]);
  const rest = pieces.slice(place, place + 64).find((piece) => piece !== "");
  return rest === undefined ? "▫" : `▫ part of ${visible(Array.from(rest)[0])}`;
}

/** Ends of an axis and its ticks: about four round steps that hold all values. */
function axis(values) {
  const low = Math.min(...values), high = Math.max(...values);
  const rough = Math.max(high - low, 0.02) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const first = Math.floor(low / step), last = Math.max(Math.ceil(high / step), first + 1);
  const ticks = Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step);
  return { low: ticks[0], high: ticks[ticks.length - 1], ticks, digits: Math.max(0, Math.ceil(-Math.log10(step))) };
}

/**
 * The loss from the short context, over k tokens more, to the long context, beside the null's.
 *
 * losses: {short, long, own: [a loss at each k], null: the same or null}, in nats; kIndex: the k in force.
 */
function drawChart(svg, ks, losses, kIndex) {
  const left = 42, right = 312, top = 12, bottom = 148;
  const names = ["0", ...ks.map(String), "all"];
  const own = [losses.short, ...losses.own, losses.long];
  const ofNull = losses.null === null ? [] : [losses.short, ...losses.null];
  const { low, high, ticks, digits } = axis([...own, ...ofNull]);
  const x = (index) => left + 12 + (index * (right - left - 24)) / (names.length - 1);
  const y = (loss) => bottom - ((loss - low) / (high - low)) * (bottom - top);
  const line = (values) => values.map((loss, index) => `${x(index).toFixed(1)},${y(loss).toFixed(1)}`).join(" ");
  svg.setAttribute("viewBox", "0 0 320 186");
  svg.replaceChildren(
    ...ticks.flatMap((tick) => [
      svgElement("line", { class: "axis", x1: left, x2: right, y1: y(tick), y2: y(tick) }),
      svgElement("text", { x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, nats(tick, digits)),
    ]),
    ...names.map((name, index) => svgElement("text", { x: x(index), y: bottom + 16, "text-anchor": "middle" }, name)),
    svgElement("text", { x: (left + right) / 2, y: bottom + 33, "text-anchor": "middle" }, "far tokens beside the short context, k"),
    svgElement("line", { class: "level", x1: left, x2: right, y1: y(losses.long), y2: y(losses.long) }),
    svgElement("polyline", { class: "null", points: line(ofNull) }),
    svgElement("polyline", { class: "own", points: line(own) }),
    ...ofNull.slice(1).map((loss, index) => svgElement("circle", { class: "null", cx: x(index + 1), cy: y(loss), r: 2 })),
    ...own.map((loss, index) => svgElement("circle", { class: "own", cx: x(index), cy: y(loss), r: 3 })),
    svgElement("circle", { class: "now", cx: x(kIndex + 1), cy: y(losses.own[kIndex]), r: 5 }),
  );
  const told = ks.map((k, index) => `k = ${k}: ${nats(losses.own[index])}`).join(", ");
  svg.setAttribute("aria-label", `Loss in nats. Short context: ${nats(losses.short)}, ${told}, long context: ${nats(losses.long)}`);
}

/** A row of the table of tokens; `show` leads to the token's place in the text. */
function tokenRow(token, largest, show) {
  const button = element("button", { type: "button" }, element("bdi", {}, token.word));
  button.addEventListener("click", show);
  const bar = element("i", token.influence > 0 ? {} : { class: "less" });
  const share = token.influence === null || largest === 0 ? 0 : Math.abs(token.influence) / largest;
  bar.style.width = `${Math.max(share * 100, share > 0 ? 1 : 0).toFixed(1)}%`;
  return element(
    "tr", {},
    element("td", {}, String(token.rank)),
    element("td", { class: "word" }, button),
    element("td", {}, String(token.distance)),
    element("td", {}, token.influence === null ? "–" : signedNats(token.influence, 3)),
    element("td", { class: "bar", "aria-hidden": "true" }, bar),
  );
}
