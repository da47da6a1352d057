"""The closed list of English function words: what is on it is one, every other word is a content word.

Determiners, pronouns, prepositions, conjunctions, auxiliaries, particles and the adverbs of degree, place
and question that carry grammar rather than a topic; written for this project, and complete as it stands.
Lower case, with a straight apostrophe. `words` looks a contraction up whole and without its ending
(it's: it).
"""

_LIST = """
# determiners and quantifiers
a an the this that these those each every either neither some any no all both half few fewer less
least little many much more most several enough such another other others same own
# pronouns and possessives
i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it
its itself we us our ours ourselves they them their theirs themselves one oneself who whom whose
which what whoever whatever whichever someone somebody something anyone anybody anything everyone
everybody everything none nobody nothing there
# prepositions and particles
aboard about above across after against along among amongst around as at away back before behind
below beneath beside besides between beyond by despite down during except for from in inside into
like near of off on onto out outside over past per round since than through throughout till to
toward towards under underneath until unto up upon via with within without
# conjunctions
and but or nor yet so because although though unless whereas while whilst whether if lest once
# auxiliaries and modals
am is are was were be been being do does did doing done have has had having can could may might must
shall should will would ought cannot can't won't shan't ain't let
# negation, question and degree adverbs
not never ever also too very quite rather just only even still already again almost always often how
when where why here then thus hence therefore however else
"""
FUNCTION_WORDS = frozenset(
    word for line in _LIST.splitlines() if not line.startswith("#") for word in line.split()
)
