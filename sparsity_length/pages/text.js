// The text of the chosen document: targets shaded, influential tokens lit, words searched for marked.

let tokens = []; // one list per chunk: the elements of its tokens
let lit = []; // the elements that light up now

function openDocument(record, target = null) {
  state.document = record;
  for (const button of at("documents").querySelectorAll("button")) {
    const isCurrent = button.dataset.id === record.id;
    button.setAttribute("aria-current", String(isCurrent));
    button.tabIndex = isCurrent ? 0 : -1;
  }
  drawText();
  const { chunkIndex, index } = target !== null && target.chunkIndex !== null ? target : targetOfLargestGain(record);
  choose(chunkIndex, index, false);
  if (target?.chunkIndex != null) chosenToken().scrollIntoView({ block: "center" });
  markSearched();
}

function targetOfLargestGain(record) {
  const everywhere = record.chunks.flatMap((chunk, chunkIndex) => chunk.targets.map((_, index) => ({ record, chunkIndex, index })));
  // Losses may be those of more chunks than influential tokens.
  const selected = everywhere.filter((target) => measuredOf(target)?.rules[state.rule]);
  const targets = selected.length ? selected : everywhere;
  return targets.reduce((best, target) => ((gainOf(target) ?? -Infinity) > (gainOf(best) ?? -Infinity) ? target : best));
}

function drawText() {
  const record = state.document;
  at("text-heading").replaceChildren("Document ", element("bdi", {}, record.id));
  const chunks = record.chunks.map((chunk) => drawChunk(chunk.pieces));
  tokens = chunks.map((chunk) => chunk.tokens);
  record.chunks.forEach((chunk, chunkIndex) => {
    chunk.targets.forEach((place, index) => {
      const token = tokens[chunkIndex][place];
      token.classList.add("target");
      if (/^\s*\n\s*$/.test(chunk.pieces[place])) token.classList.add("newline");
      token.setAttribute("role", "button");
      token.setAttribute("aria-pressed", "false");
      token.tabIndex = -1;
      token.addEventListener("click", () => choose(chunkIndex, index, true));
    });
  });
  at("text").replaceChildren(...record.chunks.flatMap((chunk, index) => {
    const last = chunk.start + chunk.pieces.length - 1;
    const heading = element("p", { class: "between" }, `tokens ${chunk.start} to ${last} of ${record.num_tokens}`);
    return [heading, chunks[index].paragraph];
  }));
  lit = [];
  shadeTargets();
}

/** A chunk's paragraph and the element of each token. The blank before a word stays outside of its token's shade. */
function drawChunk(pieces) {
  const paragraph = element("p", { class: "chunk", dir: "auto" });
  const ofTokens = pieces.map((piece) => {
    const hasBlank = /^ [^ ]/u.test(piece);
    const token = element("span", { class: isShapeless(piece) ? "token shapeless" : "token" }, hasBlank ? piece.slice(1) : piece);
    if (hasBlank) paragraph.append(" ");
    paragraph.append(token);
    return token;
  });
  return { paragraph, tokens: ofTokens };
}

function shadeTargets() {
  state.document.chunks.forEach((chunk, chunkIndex) => {
    chunk.targets.forEach((place, index) => {
      const token = tokens[chunkIndex][place], gain = gainOf({ record: state.document, chunkIndex, index });
      token.style.setProperty("--hue", gain > 0 ? "var(--helps)" : "var(--hurts)");
      token.style.setProperty("--depth", Math.min(1, Math.abs(gain ?? 0) / deepest).toFixed(3));
      const said = gain === null ? "not measured" : `gain ${signedNats(gain)} nats`;
      token.title = said;
      token.setAttribute("aria-label", `${word(chunk.pieces, place)}, ${said}`);
    });
  });
}

const chosenToken = () => tokens[state.chunk][chosenChunk().targets[state.target]];

/** Make a target the chosen one; `withFocus` if it was reached by key or click. */
function choose(chunkIndex, targetIndex, withFocus) {
  const before = at("text").querySelector(".target[aria-pressed=true]");
  before?.setAttribute("aria-pressed", "false");
  if (before) before.tabIndex = -1;
  Object.assign(state, { chunk: chunkIndex, target: targetIndex });
  const token = chosenToken();
  token.setAttribute("aria-pressed", "true");
  token.tabIndex = 0;
  if (withFocus) token.focus();
  showTarget();
}

function moveBy(step) {
  const places = state.document.chunks.flatMap((chunk, chunkIndex) => chunk.targets.map((_, index) => [chunkIndex, index]));
  const now = places.findIndex(([chunkIndex, index]) => chunkIndex === state.chunk && index === state.target);
  const [chunkIndex, index] = places[Math.min(places.length - 1, Math.max(0, now + step))];
  choose(chunkIndex, index, true);
}

/** Light up the influential tokens, and those of the rule beside; underline the short context. */
function light(selection, ofBeside) {
  const chunk = chosenChunk(), place = chunk.targets[state.target];
  for (const token of lit) {
    token.classList.remove("lit", "foreign", "near", "beside");
    delete token.dataset.rank;
    if (!token.classList.contains("target")) token.removeAttribute("title");
  }
  const near = tokens[state.chunk].slice(Math.max(0, place - data.short_context_length), place);
  for (const token of near) token.classList.add("near");
  for (const { place: there } of ofBeside) tokens[state.chunk][there].classList.add("beside");
  const largest = Math.max(0, ...selection.map((token) => token.influence ?? 0));
  const chosen = selection.map((token) => {
    const shown = tokens[state.chunk][token.place];
    shown.classList.add("lit");
    shown.classList.toggle("foreign", isNullShown());
    shown.dataset.rank = token.rank;
    const strength = largest > 0 ? Math.max(0, token.influence ?? 0) / largest : 0;
    shown.style.setProperty("--strength", strength.toFixed(3));
    const influence = token.influence === null ? "" : `, influence ${signedNats(token.influence, 3)} nats`;
    if (!shown.classList.contains("target")) shown.title = `rank ${token.rank}${influence}, distance ${token.distance}`;
    return shown;
  });
  lit = [...near, ...chosen, ...ofBeside.map((token) => tokens[state.chunk][token.place])];
}

/** Mark the words searched for in the text, without a change of the text. Browsers without highlights do not. */
function markSearched() {
  if (typeof Highlight === "undefined") return;
  const words = searchedWords(), ranges = [];
  for (const paragraph of words === "" ? [] : at("text").querySelectorAll(".chunk")) ranges.push(...rangesOf(paragraph, words));
  CSS.highlights.set("searched", new Highlight(...ranges));
}

/** Where `words` stand in a paragraph, whatever the tokens that they are cut into. */
function rangesOf(paragraph, words) {
  const walker = document.createTreeWalker(paragraph, NodeFilter.SHOW_TEXT), nodes = [], starts = [];
  let text = "";
  for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
    nodes.push(node);
    starts.push(text.length);
    text += node.data;
  }
  // A character may have another length in lower case; then places would be wrong, and nothing is marked.
  const lower = text.toLowerCase(), ranges = [];
  if (lower.length !== text.length) return ranges;
  const end = (place, isEnd) => {
    const index = starts.findLastIndex((start) => (isEnd ? start < place : start <= place));
    return [nodes[index], place - starts[index]];
  };
  for (let place = lower.indexOf(words); place >= 0; place = lower.indexOf(words, place + words.length)) {
    const range = new Range();
    range.setStart(...end(place, false));
    range.setEnd(...end(place + words.length, true));
    ranges.push(range);
  }
  return ranges;
}
