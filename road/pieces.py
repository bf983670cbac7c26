"""The Transformer without one of its pieces, and the road's two ends on another language."""

from road.plan import Rung

PAPER = "Vaswani et al. 2017"

PIECES = (
    Rung(
        recipe="multi30k-small",
        title="The whole, smaller",
        paper=PAPER,
        idea=(
            "This is the Transformer of the road with fewer and narrower blocks, so that several of them can be "
            "trained.",
            "Each of the next rungs leaves out one piece of it and nothing else.",
            "All of them have one budget, so what differs between the whole and another is that one piece.",
        ),
        equation="""
x = x + attend(Norm(x))
x = x + W₂ relu(W₁ Norm(x))
""",
        code=("regard.layers.blocks:Block", "regard.layers.blocks:PreNorm"),
    ),
    Rung(
        recipe="multi30k-small-no-feedforward",
        title="Without feed-forward layers",
        paper=PAPER,
        idea=(
            "A block only looks, and does not think: attention mixes what other places hold, by weights that sum to "
            "one.",
            "The feed-forward layer is where a place can compute something new from what it has gathered.",
            "Without it the only bends left in the network are the softmax and the norms, and many parameters are "
            "gone too.",
        ),
        equation="""
x = x + attend(Norm(x))
""",
        code=("regard.layers.blocks:FeedForward",),
    ),
    Rung(
        recipe="multi30k-small-no-residual",
        title="Without residual paths",
        paper=PAPER,
        idea=(
            "A residual path adds what a sublayer finds to what came in, so that a sublayer need only say what is new.",
            "Without it each sublayer must pass on everything by itself: which piece stands here, at which place.",
            "The gradient, too, then has to go through every sublayer on its way down.",
        ),
        equation="""
x = Norm(attend(x))
x = Norm(W₂ relu(W₁ x))
""",
        code=("regard.layers.blocks:NoResidual",),
    ),
    Rung(
        recipe="multi30k-small-no-norm",
        title="Without norms",
        paper=PAPER,
        idea=(
            "A norm brings each place's vector to mean zero and unit variance before a sublayer reads it.",
            "Without it the sums on the residual path can grow from block to block, and with them the scores of "
            "attention.",
            "How large a learning rate the network stands then hangs on how it was initialised.",
        ),
        equation="""
x = x + attend(x)
x = x + W₂ relu(W₁ x)
""",
        code=("regard.layers.blocks:NoNorm",),
    ),
    Rung(
        recipe="multi30k-small-no-scale",
        title="Without 1/√d",
        paper=PAPER,
        idea=(
            "The product of two random vectors has a spread of √d if they have d entries of variance one, so the "
            "scores of wide heads are large.",
            "Large scores drive the softmax to one place alone, where its gradient nearly vanishes.",
            "Dividing by √d keeps the scores at a spread of about one, whatever the width.",
        ),
        equation="""
attend(Q, K, V) = softmax(Q Kᵀ) V
""",
        code=("regard.attention.scores:dot", "regard.attention.scores:scaled_dot"),
    ),
    Rung(
        recipe="multi30k-small-no-positions",
        title="Without positions",
        paper=PAPER,
        idea=(
            "Attention is a sum over what it sees, and a sum does not change when its terms are shuffled.",
            "Without positions the encoder reads a bag of pieces: two sources of the same pieces in another order are "
            "one to it.",
            "The decoder is not quite as blind, for the causal mask lets each place see one piece more than the last.",
        ),
        equation="""
x₀ = embed(tokens)                        nothing added
""",
        code=("regard.layers.embedding:Embedding",),
    ),
    Rung(
        recipe="multi30k-small-one-head",
        title="With one head",
        paper=PAPER,
        idea=(
            "A head looks in one way: its weights are one distribution over the places.",
            "Several narrow heads look in several ways at once, at about the cost of a single wide one.",
            "With one head, whatever a block wants from different places must come as one mixture.",
        ),
        equation="""
attend(x) = W softmax(Q Kᵀ / √d) V        d: the whole width
""",
        code=("regard.attention.variants:multihead",),
    ),
)

LANGUAGE = (
    Rung(
        recipe="multi30k-fr-luong",
        title="English → French, global attention",
        paper="Luong et al. 2015",
        idea=(
            "The same photographs are described in French as well, so the same network can learn another pair of "
            "languages.",
            "Nothing in it knows of languages: what differs is the data, and the pieces that are learnt from it.",
            "French puts most adjectives behind their noun, which shows as a crossing in the alignment.",
        ),
        equation="""
αₜ = softmaxᵢ(sₜ · W hᵢ)
cₜ = Σᵢ αₜᵢ hᵢ
""",
        code=("regard.models.seq2seq:Seq2Seq._luong",),
    ),
    Rung(
        recipe="multi30k-fr-transformer",
        title="English → French, Transformer",
        paper=PAPER,
        idea=(
            "This is the small Transformer from above once more, now from English into French.",
            "A step that one pair of languages shows might be that pair's own.",
            "Two rungs on a second pair say whether the step is there too.",
        ),
        equation="""
attend(Q, K, V) = softmax(Q Kᵀ / √d) V
""",
        code=("regard.models.transformer:Transformer",),
    ),
)
