"""The colours and markers of figures: a rule has the same everywhere, models by their order.

The first eight are Okabe and Ito's, which colour-blind readers tell apart.
"""

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#767676"
RULE_COLORS = {
    "leave_one_out": BLUE, "leave_one_out_search": "#00456B", "add_one_in": SKY, "greedy": GREEN,
    "banzhaf": "#8C6D1F", "gradient": PURPLE, "leave_one_out_divergence": ORANGE,
    "add_one_in_divergence": "#7B3F9E", "greedy_divergence": "#7A8B00", "banzhaf_divergence": "#A33E5B",
    "gradient_divergence": "#00A6A6", "context_length_probing": "#B8860B",
    "context_length_probing_divergence": "#6B4E00", "surrogate": "#E377C2", "surrogate_divergence": "#9E2A7D",
    "attention_rollout": "#8C3B1F", "learned_attention": "#FF8C69",
    "learned_attention_divergence": "#B5533C", "input_x_gradient": "#5B5BD6",
    "integrated_gradients": "#2E2E8C", "attention": VERMILION, "nearest": BLACK, "random": GREY,
}  # fmt: skip
"""Of every rule; those that share a page by default have Okabe and Ito's, further ones also a marker."""
RULE_MARKERS = {
    "leave_one_out": "o", "leave_one_out_search": "8", "add_one_in": "s", "greedy": "^", "banzhaf": "p",
    "gradient": "D", "leave_one_out_divergence": "v", "add_one_in_divergence": "<",
    "greedy_divergence": ">", "banzhaf_divergence": "h", "gradient_divergence": "d", "attention": "P",
    "context_length_probing": "1", "context_length_probing_divergence": "2", "surrogate": "3",
    "surrogate_divergence": "4", "attention_rollout": "H", "learned_attention": "|",
    "learned_attention_divergence": "_", "input_x_gradient": "x", "integrated_gradients": "+",
    "nearest": "X", "random": "*",
}  # fmt: skip
MODEL_COLORS = [BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK, YELLOW]
MODEL_MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
