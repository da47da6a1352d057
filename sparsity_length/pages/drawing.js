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

/** Nats with a true minus sign; null if nothing was measured. */
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
 * The loss, or the divergence, over k tokens to the long context, beside the null's and another rule's.
 *
 * curves: {start, long, own: [a value at each k], null: the same or null, beside, besideStart, besideLong: of the
 * rule beside, or null}, in nats; kIndex: the k in force.
 */
function drawChart(svg, ks, curves, kIndex) {
  const left = 42, right = 312, top = 12, bottom = 148;
  const names = ["0", ...ks.map(String), "all"];
  const own = [curves.start, ...curves.own, curves.long];
  const ofNull = curves.null === null ? [] : [curves.start, ...curves.null];
  const beside = curves.beside === null ? [] : [curves.besideStart, ...curves.beside, curves.besideLong];
  const { low, high, ticks, digits } = axis([...own, ...ofNull, ...beside]);
  const x = (index) => left + 12 + (index * (right - left - 24)) / (names.length - 1);
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  const line = (values) => values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const dots = (values, kind, radius) => values.map((value, index) => svgElement("circle", { class: kind, cx: x(index), cy: y(value), r: radius }));
  svg.setAttribute("viewBox", "0 0 320 186");
  svg.replaceChildren(
    ...ticks.flatMap((tick) => [
      svgElement("line", { class: "axis", x1: left, x2: right, y1: y(tick), y2: y(tick) }),
      svgElement("text", { x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, nats(tick, digits)),
    ]),
    ...names.map((name, index) => svgElement("text", { x: x(index), y: bottom + 16, "text-anchor": "middle" }, name)),
    svgElement("text", { x: (left + right) / 2, y: bottom + 33, "text-anchor": "middle" }, curves.isSwapped ? "own tokens in a swapped context, k" : "distant tokens beside the short context, k"),
    svgElement("line", { class: "level", x1: left, x2: right, y1: y(curves.long), y2: y(curves.long) }),
    svgElement("polyline", { class: "null", points: line(ofNull) }),
    svgElement("polyline", { class: "beside", points: line(beside) }),
    svgElement("polyline", { class: "own", points: line(own) }),
    ...dots(ofNull, "null", 2), ...dots(beside, "beside", 2.5), ...dots(own, "own", 3),
    svgElement("circle", { class: "now", cx: x(kIndex + 1), cy: y(curves.own[kIndex]), r: 5 }),
  );
  const told = ks.map((k, index) => `k = ${k}: ${nats(curves.own[index])}`).join(", ");
  svg.setAttribute("aria-label", `In nats. ${curves.isSwapped ? "Swapped context" : "Short context"}: ${nats(curves.start)}, ${told}, long context: ${nats(curves.long)}`);
}

/** How many targets gain how much, and where one of them stands; 1 in 100 at either end is drawn at the end. */
function drawHistogram(svg, ascending, chosen) {
  const left = 8, right = 312, bottom = 34, numBins = 38;
  const low = Math.min(0, ascending[Math.floor(ascending.length * 0.01)]);
  const high = Math.max(0.1, ascending[Math.ceil(ascending.length * 0.99) - 1]);
  const binOf = (gain) => Math.min(numBins - 1, Math.max(0, Math.floor(((gain - low) / (high - low)) * numBins)));
  const counts = new Array(numBins).fill(0);
  for (const gain of ascending) counts[binOf(gain)] += 1;
  const most = Math.max(...counts), width = (right - left) / numBins;
  // By square roots, so that a single target can be seen beside thousands.
  const height = (count) => (bottom - 4) * Math.sqrt(count / most);
  const x = (gain) => left + Math.min(1, Math.max(0, (gain - low) / (high - low))) * (right - left);
  svg.setAttribute("viewBox", "0 0 320 50");
  svg.replaceChildren(
    ...counts.map((count, bin) => svgElement("rect", { class: "bin", x: left + bin * width, width: width - 1, y: bottom - height(count), height: height(count) })),
    svgElement("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: bottom }),
    svgElement("path", { class: "here", d: `M${x(chosen)} ${bottom + 1}l5 8h-10z` }),
    svgElement("text", { x: x(0), y: bottom + 14, "text-anchor": "middle" }, "0"),
  );
  svg.setAttribute("aria-label", `How many targets gain how much; this one gains ${signedNats(chosen)} nats`);
}

/** A row of the table of tokens; `show` leads to the token's place in the text. */
function tokenRow(token, largest, hasBeside, show) {
  const button = element("button", { type: "button" }, element("bdi", {}, token.word));
  button.addEventListener("click", show);
  const bar = element("i", token.influence > 0 ? {} : { class: "less" });
  const share = token.influence === null || largest === 0 ? 0 : Math.min(1, Math.abs(token.influence) / largest);
  bar.style.width = `${Math.max(share * 100, share > 0 ? 1 : 0).toFixed(1)}%`;
  return element(
    "tr", {},
    element("td", {}, String(token.rank)),
    ...(hasBeside ? [element("td", {}, String(token.rankBeside))] : []),
    element("td", { class: "word" }, button),
    element("td", {}, String(token.distance)),
    element("td", {}, token.influence === null ? "–" : signedNats(token.influence, 3)),
    element("td", { class: "bar", "aria-hidden": "true" }, bar),
  );
}
