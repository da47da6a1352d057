// The chosen target: its numbers, where it stands among all, its curve and its tokens.

function showTarget() {
  const chunk = chosenChunk(), place = chunk.targets[state.target];
  const measured = measuredTarget(), beside = state.beside === null ? null : measuredTarget(state.beside);
  at("target-heading").replaceChildren("Target “", element("bdi", {}, word(chunk.pieces, place)), `”, position ${chunk.start + place}`);
  light(measured?.selection ?? [], beside?.selection ?? []);
  showControls();
  at("chart").parentElement.hidden = at("tokens").hidden = !measured?.selection;
  showStanding(measured);
  listTargets();
  writeAddress();
  if (measured === null) {
    at("said").textContent = `${state.model} was not run on this document.`;
    at("numbers").replaceChildren();
    at("note").textContent = "";
    return;
  }
  showSaid(measured);
  showNumbers(measured, beside);
  at("note").textContent = noteOf(measured);
  if (measured.selection === null) return;
  const curves = { ...measured, beside: beside?.own ?? null, besideLong: beside?.long ?? null, besideStart: beside?.start ?? null };
  drawChart(at("chart"), data.k, curves, state.kIndex);
  at("chart-caption").replaceChildren(...captionOf(measured, beside));
  showTokens(measured.selection, beside?.selection ?? null);
}

/** What the controls say of the view, if a key or a link has changed it. */
function showControls() {
  at("model").value = state.model;
  at("rule").value = state.rule;
  at("criterion").value = state.criterion;
  at("k").value = state.kIndex;
  at("k-value").textContent = chosenK();
  at("k").setAttribute("aria-valuetext", `k = ${chosenK()}`);
  at("beside").value = state.beside === null ? "" : besideKey(state.beside);
  for (const button of document.getElementsByName("far")) {
    button.checked = button.value === state.far;
    button.disabled = button.value !== "own" && !hasNull();
  }
}

function showSaid({ short, long, start, isSwapped }) {
  if (state.criterion === "divergence") {
    at("said").textContent = short === null ? "Divergences were not measured."
      : `The short context's prediction is ${nats(short)} nats from that of the long one: the gain expected before the token is seen.`;
    return;
  }
  const gain = short - long, foreign = isSwapped ? ` With a swapped context it is ${nats(start)}.` : "";
  at("said").textContent = `With the long context the loss ${gain > 0 ? "falls" : "rises"} from ${nats(short)} to ${nats(long)} nats: a gain of ${signedNats(gain)}.${foreign}`;
}

function kStarInWords(kStar, isShort = false) {
  if (kStar === null) return isShort ? "–" : `none: gain below ${data.minimum_gain}`;
  if (kStar === "censored") return isShort ? `> ${data.k.at(-1)}` : `more than ${data.k.at(-1)}`;
  return String(kStar);
}

function showNumbers(measured, beside) {
  const { short, long, start, own, isSwapped, kStar, selection } = measured;
  const isLoss = state.criterion === "loss", k = chosenK(), ofNull = measured.null;
  const what = isLoss ? "Loss" : "Divergence", tokens = `${k} token${k > 1 ? "s" : ""}`;
  const numbers = [[`${what}, short context`, nats(short, 3)]];
  if (isSwapped) numbers.push([`${what}, swapped context`, nats(start, 3)]);
  if (own !== null) numbers.push([`… and ${tokens}`, nats(own[state.kIndex], 3)]);
  if (ofNull !== null) numbers.push([`… and ${k} of the null`, nats(ofNull[state.kIndex], 3)]);
  if (isLoss) numbers.push([`${what}, long context`, nats(long, 3)]);
  const besideOwn = beside?.own ?? null;
  if (besideOwn !== null) numbers.push([`Beside: ${what.toLowerCase()} with ${tokens}`, nats(besideOwn[state.kIndex], 3)]);
  if (beside !== null && isLoss && state.beside.model !== state.model) numbers.push(["Beside: loss, long context", nats(beside.long, 3)]);
  if (selection !== null) numbers.push(["k*", kStarInWords(kStar)]);
  for (const [name, title] of [["expected", "Expected gain"], ["specific", "Specific gain"]]) {
    const value = measures[name](chosenTarget());
    if (value !== null) numbers.push([title, signedNats(value, 3)]);
  }
  at("numbers").replaceChildren(...numbers.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function noteOf({ selection }) {
  if (selection === null) return `No influential tokens of the rule ${state.rule} were measured for ${state.model}.`;
  if (!hasNull()) return "This rule was measured without its null: it fits neither the answer nor the prediction.";
  if (!isNullShown()) return "";
  return "In the null the distant context is another document's. Dashed frames in the text mark where these tokens stood; the words inside are this document's.";
}

const namedBeside = () => (state.beside.model === state.model ? state.beside.rule : `${state.beside.model}, ${state.beside.rule}`);

function captionOf(measured, beside) {
  const parts = [`${state.criterion === "loss" ? "Loss" : "Divergence from the long context's prediction"} in nats. Blue: tokens of this document`];
  if (measured.null !== null) parts.push("gray, dashed: the null");
  if (beside?.own) parts.push(`green: ${namedBeside()}`);
  return [`${parts.join("; ")}; dotted: the long context.`];
}

// Where it stands ------------------------------------------------------------------------------------------

/** Among all targets of the page: a target that was picked is to be seen as picked. */
function showStanding(measured) {
  at("standing").hidden = measured === null;
  if (measured === null) return;
  const all = gainsOfModel(), gain = gainOf(chosenTarget());
  const mean = all.reduce((sum, value) => sum + value, 0) / all.length;
  const larger = all.length - firstAbove(all, gain);
  drawHistogram(at("histogram"), all, gain);
  at("stands").textContent = `Of ${all.length.toLocaleString("en")} targets ${larger.toLocaleString("en")} gain more; the mean gain is ${signedNats(mean)} nats.`;
}

/** How many of ascending numbers are at most `value`. */
function firstAbove(ascending, value) {
  let low = 0, high = ascending.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Tokens ---------------------------------------------------------------------------------------------------

function showTokens(selection, ofBeside) {
  const largest = Math.max(0, ...selection.map((token) => Math.abs(token.influence ?? 0)));
  const inOrder = selection.every((token, index) => index === 0 || selection[index - 1].influence >= token.influence);
  const caption = `${isNullShown() ? "Another document's tokens that" : "Distant tokens that"} ${state.rule} ranks first${inOrder ? "" : "; it does not rank by the last column, what leaving one out costs"}`;
  const heading = (text, kind = "") => element("th", { scope: "col", class: kind }, text);
  const headings = [heading("rank", "rank"), heading("token", "word"), heading("distance, tokens", "distance"), heading("influence, nats", "influence")];
  if (ofBeside !== null) headings.splice(1, 0, heading("beside", "rank"));
  const rankBeside = new Map((ofBeside ?? []).map((token) => [token.place, token.rank]));
  const places = new Set(selection.map(({ place }) => place));
  const onlyBeside = (ofBeside ?? []).filter(({ place }) => !places.has(place)).map((token) => ({ ...token, rank: "–", rankBeside: token.rank }));
  const shared = selection.map((token) => ({ ...token, rankBeside: rankBeside.get(token.place) ?? "–" }));
  const rows = [...shared, ...onlyBeside].map((token) => tokenRow(token, largest, ofBeside !== null, () => lookAt(token)));
  at("tokens").classList.toggle("with-beside", ofBeside !== null);
  const head = element("tr", {}, ...headings, element("td"));
  at("tokens").replaceChildren(element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...rows));
  at("shared").textContent = ofBeside === null ? ""
    : `Beside: ${namedBeside()}. ${shared.length - shared.filter((token) => token.rankBeside === "–").length} of ${selection.length} tokens are shared.`;
}

function lookAt(token) {
  const shown = tokens[state.chunk][token.place];
  if (!shown.hasAttribute("tabindex")) shown.tabIndex = -1;
  shown.focus();
  shown.scrollIntoView({ block: "nearest" });
}
