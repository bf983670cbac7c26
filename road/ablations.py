"""The Transformer without one of its components, and two of the compared models on another language."""

from road.plan import Experiment

PAPER = "Vaswani et al. 2017"

ABLATIONS = (
    Experiment(
        recipe="multi30k-small",
        title="Small Transformer",
        paper=PAPER,
        idea=(
            "This is the Transformer of the comparison with fewer and narrower blocks, so that several can be trained.",
            "Each of the next models leaves out one component and nothing else.",
            "All have the same training budget, so that a difference is due to that component.",
        ),
        equation="""
x = x + attend(Norm(x))
x = x + W₂ relu(W₁ Norm(x))
""",
        code=("regard.layers.blocks:Block", "regard.layers.blocks:PreNorm"),
    ),
    Experiment(
        recipe="multi30k-small-no-feedforward",
        title="Without feed-forward layers",
        paper=PAPER,
        idea=(
            "A block only attends: attention computes averages of other positions' values, by weights that sum to one.",
            "The feed-forward layer computes a nonlinear function of the result at each position.",
            "Without it the only nonlinearities are the softmax and the norms, and there are far fewer parameters.",
        ),
        equation="""
x = x + attend(Norm(x))
""",
        code=("regard.layers.blocks:FeedForward",),
    ),
    Experiment(
        recipe="multi30k-small-no-residual",
        title="Without residual connections",
        paper=PAPER,
        idea=(
            "A residual connection adds a sublayer's output to its input, so that it need only compute the difference.",
            "Without it each sublayer must itself preserve the token's identity and position.",
            "The gradient must then pass through every sublayer as well.",
        ),
        equation="""
x = Norm(attend(x))
x = Norm(W₂ relu(W₁ x))
""",
        code=("regard.layers.blocks:NoResidual",),
    ),
    Experiment(
        recipe="multi30k-small-no-norm",
        title="Without norms",
        paper=PAPER,
        idea=(
            "Layer norm scales each position's vector to mean zero and unit variance before a sublayer.",
            "Without it the residual sums can grow from block to block, and with them the attention scores.",
            "The largest stable learning rate then depends on the initialisation.",
        ),
        equation="""
x = x + attend(x)
x = x + W₂ relu(W₁ x)
""",
        code=("regard.layers.blocks:NoNorm",),
    ),
    Experiment(
        recipe="multi30k-small-no-scale",
        title="Without 1/√d",
        paper=PAPER,
        idea=(
            "The dot product of two random vectors has standard deviation √d if their d entries have variance one, so "
            "the scores of wide heads are large.",
            "Large scores saturate the softmax, and its gradient nearly vanishes.",
            "Dividing by √d keeps their standard deviation at about one for any width.",
        ),
        equation="""
attend(Q, K, V) = softmax(Q Kᵀ) V
""",
        code=("regard.attention.scores:dot", "regard.attention.scores:scaled_dot"),
    ),
    Experiment(
        recipe="multi30k-small-no-positions",
        title="Without positions",
        paper=PAPER,
        idea=(
            "Attention is a weighted sum over its keys, which does not depend on their order.",
            "Without position encodings the encoder sees a bag of tokens: two sources with the same tokens in another "
            "order are equal to it.",
            "The decoder still has some order information, since the causal mask shows each position one token more.",
        ),
        equation="""
x₀ = embed(tokens)                        nothing added
""",
        code=("regard.layers.embedding:Embedding",),
    ),
    Experiment(
        recipe="multi30k-small-one-head",
        title="With one head",
        paper=PAPER,
        idea=(
            "The weights of a head are one distribution over the positions.",
            "Several narrow heads have several distributions, at about the cost of a single wide one.",
            "With one head, whatever a block needs from different positions must come from one average.",
        ),
        equation="""
attend(x) = W softmax(Q Kᵀ / √d) V        d: the full width
""",
        code=("regard.attention.variants:multihead",),
    ),
)

LANGUAGE = (
    Experiment(
        recipe="multi30k-fr-luong",
        title="English → French, global attention",
        paper="Luong et al. 2015",
        idea=(
            "The same photographs are described in French as well, so the model can be trained on another pair of "
            "languages.",
            "Nothing in it depends on the languages: only the data and the vocabulary trained on it differ.",
            "French puts most adjectives after their noun, which shows as a crossing in the alignment.",
        ),
        equation="""
αₜ = softmaxᵢ(sₜ · W hᵢ)
cₜ = Σᵢ αₜᵢ hᵢ
""",
        code=("regard.models.seq2seq:Seq2Seq._luong",),
    ),
    Experiment(
        recipe="multi30k-fr-transformer",
        title="English → French, Transformer",
        paper=PAPER,
        idea=(
            "This is the small Transformer from above once more, now from English into French.",
            "A difference on one language pair might be specific to that pair.",
            "Two models on a second pair show whether it holds there too.",
        ),
        equation="""
attend(Q, K, V) = softmax(Q Kᵀ / √d) V
""",
        code=("regard.models.transformer:Transformer",),
    ),
)
