// What was measured, by name: of a target, of all targets. analysis/explorer.py describes the data.

const data = JSON.parse(document.getElementById("data").textContent);
const unit = data.unit_nats;
const at = (id) => document.getElementById(id);
const state = {
  document: null, chunk: 0, target: 0, model: data.models[0], rule: data.rules[0], far: "own", criterion: "loss", kIndex: 0,
  beside: null, // {model, rule} that stand beside
};

const inNats = (value) => (value === null || value === undefined ? null : value * unit);
const columnAt = (column, index) => inNats(column?.[index]);

/** Every target of the page: {record, chunkIndex, index}, in the page's order. */
const everyTarget = data.documents.flatMap((record) => record.chunks.flatMap(
  (chunk, chunkIndex) => chunk.targets.map((_, index) => ({ record, chunkIndex, index })),
));

const measuredOf = (target, model = state.model) => target.record.chunks[target.chunkIndex].models[model];

/** L_short - L_long in nats; null if the model was not run on the target. */
function gainOf(target, model = state.model) {
  const measured = measuredOf(target, model);
  return measured === undefined ? null : (measured.short[target.index] - measured.long[target.index]) * unit;
}

/** One number per target for lists and sorting, null if there is none. */
const measures = {
  gain: gainOf,
  expected: (target) => columnAt(measuredOf(target)?.expected, target.index),
  specific: (target) => columnAt(measuredOf(target)?.specific, target.index),
  k: (target) => {
    const kStar = kStarOf(target);
    return kStar === "censored" ? Infinity : kStar;
  },
  gap: (target) => {
    const other = state.beside === null || state.beside.model === state.model ? undefined : measuredOf(target, state.beside.model);
    const own = measuredOf(target);
    return own === undefined || other === undefined ? null : (own.long[target.index] - other.long[target.index]) * unit;
  },
};

function kStarOf(target) {
  return measuredOf(target)?.rules[state.rule]?.k_star[state.criterion]?.[target.index] ?? null;
}

/** The gain of the deepest shade: one scale for all models and documents, which 19 in 20 targets stay within. */
function deepestGain() {
  const sizes = new Float64Array(data.models.flatMap(
    (model) => everyTarget.map((target) => gainOf(target, model)).filter((gain) => gain !== null).map(Math.abs),
  )).sort();
  return Math.max(0.1, Math.ceil((sizes[Math.floor(sizes.length * 0.95)] ?? 0) * 10) / 10);
}
const deepest = deepestGain();

const sortedGains = new Map(); // model -> the gains of all targets, ascending

function gainsOfModel() {
  if (!sortedGains.has(state.model)) {
    const gains = everyTarget.map((target) => gainOf(target)).filter((gain) => gain !== null);
    sortedGains.set(state.model, new Float64Array(gains).sort());
  }
  return sortedGains.get(state.model);
}

/** Mean gain of a document's targets in nats; null if the model was not run on it. */
function meanGain(record) {
  let sum = 0, number = 0;
  for (const chunk of record.chunks) {
    const measured = chunk.models[state.model];
    if (measured === undefined) continue;
    measured.short.forEach((short, index) => { sum += (short - measured.long[index]) * unit; });
    number += measured.short.length;
  }
  return number === 0 ? null : sum / number;
}

const chosenTarget = () => ({ record: state.document, chunkIndex: state.chunk, index: state.target });
const chosenChunk = () => state.document.chunks[state.chunk];
const chosenK = () => data.k[state.kIndex];
const isNullShown = () => state.far !== "own" && hasNull();

function hasNull({ model, rule } = state) {
  return chosenChunk().models[model]?.rules[rule]?.other_document !== undefined;
}

/**
 * What was measured of the chosen target by a model and a rule, in nats; null if the model was not run on it.
 *
 * {short, long, start, own, null, kStar, selection}: start is what k tokens are added to, own and null a value
 * at each k, selection the first k tokens; own, null and selection are null if there are none.
 */
function measuredTarget({ model, rule } = state) {
  const chunk = chosenChunk(), measured = chunk.models[model], index = state.target;
  if (measured === undefined) return null;
  const isLoss = state.criterion === "loss", of = measured.rules[rule];
  const short = columnAt(isLoss ? measured.short : measured.expected, index);
  const long = isLoss ? columnAt(measured.long, index) : 0;
  const start = columnAt(isLoss ? measured.swap : measured.swap_kl, index) ?? short;
  const curve = (context) => context?.[isLoss ? "loss" : "kl"]?.[index].map(inNats) ?? null;
  const both = { short, long, start, isSwapped: measured.swap !== undefined };
  if (of === undefined) return { ...both, own: null, null: null, kStar: null, selection: null };
  return {
    ...both, own: curve(of.own), null: curve(of.other_document), kStar: of.k_star[state.criterion]?.[index] ?? null,
    selection: selectionOf(of, state.far),
  };
}

/** The first k tokens of a rule's distant context, own or the null's; own if there is no null. */
function selectionOf(ofRule, far) {
  const chunk = chosenChunk(), place = chunk.targets[state.target], of = ofRule[far] ?? ofRule.own;
  return of.distance[state.target].slice(0, chosenK()).map((distance, rank) => ({
    rank: rank + 1, distance, place: place - distance, influence: inNats(of.influence[state.target][rank]),
    word: "token" in of ? visible(of.token[state.target][rank]) : word(chunk.pieces, place - distance),
  }));
}
