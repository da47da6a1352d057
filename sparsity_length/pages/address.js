// The view in the address, behind the #: a link to it opens the same document, target, model, rule and k.

const besideKey = ({ model, rule }) => JSON.stringify([model, rule]);

/** The view as the part of an address behind the #. */
function addressOfView() {
  const chunk = chosenChunk();
  const view = new URLSearchParams({
    document: state.document.id, position: chunk.start + chunk.targets[state.target], model: state.model, rule: state.rule,
    far: state.far, criterion: state.criterion, k: chosenK(),
  });
  if (state.beside !== null) view.set("beside", besideKey(state.beside));
  return `#${view}`;
}

/** Write the view into the address, without a step in the browser's history for each; a notebook's frame has none. */
function writeAddress() {
  const address = addressOfView();
  if (address !== location.hash && location.protocol !== "about:") history.replaceState(null, "", address);
}

/** Take over what an address says of the view and the page has; whatever else it says is passed over. */
function readAddress(hash) {
  const view = new URLSearchParams(hash.slice(1));
  const record = data.documents.find(({ id }) => id === view.get("document"));
  if (data.models.includes(view.get("model"))) state.model = view.get("model");
  if (data.rules.includes(view.get("rule"))) state.rule = view.get("rule");
  if (["own", "other_document"].includes(view.get("far"))) state.far = view.get("far");
  if (criteria().includes(view.get("criterion"))) state.criterion = view.get("criterion");
  const kIndex = data.k.indexOf(Number(view.get("k")));
  if (kIndex >= 0) state.kIndex = kIndex;
  state.beside = besideChoices().find((choice) => besideKey(choice) === view.get("beside")) ?? null;
  if (record === undefined) return null;
  const position = Number(view.get("position"));
  for (const [chunkIndex, chunk] of record.chunks.entries()) {
    const index = chunk.targets.indexOf(position - chunk.start);
    if (index >= 0) return { record, chunkIndex, index };
  }
  return { record, chunkIndex: null, index: null };
}

/** The criteria that the page has numbers for. */
function criteria() {
  const hasDivergences = data.documents.some((record) => record.chunks.some((chunk) => Object.values(chunk.models).some((measured) => measured.expected !== undefined)));
  return hasDivergences ? ["loss", "divergence"] : ["loss"];
}

/** Every model and rule that can stand beside; models without selections too, for their losses. */
function besideChoices() {
  return data.models.flatMap((model) => data.rules.map((rule) => ({ model, rule })));
}
