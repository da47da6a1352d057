"""Language models behind one interface; ai2-olmo stays behind this door."""

import warnings

# ai2-olmo registers its resolvers in a way that OmegaConf 2.4 calls deprecated; no user could mend that.
warnings.filterwarnings("ignore", message="register_new_resolver")
