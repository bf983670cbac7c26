"""The compared models in the order of their papers, and the plan of the whole study."""

from road.ablations import ABLATIONS, LANGUAGE
from road.plan import Experiment, Plan, Published, Sentence

COMPARISON = (
    Experiment(
        recipe="multi30k-no-attention",
        title="No attention",
        paper="Sutskever et al. 2014",
        idea=(
            "A recurrent encoder reads the source token by token, and its last state is a single vector.",
            "A recurrent decoder starts from that vector and generates the target token by token.",
            "All information about the source must pass through this one vector, which is a bottleneck for long "
            "sources.",
        ),
        equation="""
h₁ … hₙ, h = encoder(x₁ … xₙ)             h: the last state of both directions
s₀ = tanh(W h + b)
sₜ = f(sₜ₋₁, yₜ)
readout = tanh(W [sₜ; yₜ])
""",
        code=("regard.layers.recurrent:RNNEncoder.forward", "regard.models.seq2seq:Seq2Seq.start"),
        published=Published("LSTM without attention", "13.9 M", 13.8),
        line="no attention",
    ),
    Experiment(
        recipe="multi30k-context",
        title="The last state at every step",
        paper="Cho et al. 2014",
        idea=(
            "The encoder's last state is not only the decoder's initial state: it is an input of the decoder at every "
            "step.",
            "So the decoder's state need not carry the source, and can represent what was generated so far.",
            "It is still one vector of a fixed size, whether the source is short or long.",
        ),
        equation="""
cₜ = h                                    the same at every step
sₜ = f(sₜ₋₁, [yₜ; cₜ])
readout = tanh(W [sₜ; cₜ; yₜ])
""",
        code=("regard.models.seq2seq:Seq2Seq.start", "regard.attention.scores:uniform"),
        published=Published("GRU with the context at every step", "14.2 M", 20.6),
        line="last state",
    ),
    Experiment(
        recipe="multi30k-bahdanau",
        title="Additive attention",
        paper="Bahdanau et al. 2015",
        idea=(
            "The bottleneck is removed: the encoder keeps a state for every source token.",
            "Before each step a small network scores each of them against the decoder's state, and the softmax of "
            "these scores gives the weights of their average, the context.",
            "The alignment is not supervised; it is learned from sentence pairs alone.",
        ),
        equation="""
αₜ = softmaxᵢ(v · tanh(W sₜ₋₁ + U hᵢ))
cₜ = Σᵢ αₜᵢ hᵢ
sₜ = f(sₜ₋₁, [yₜ; cₜ])
readout = tanh(W [sₜ; cₜ; yₜ])
""",
        code=(
            "regard.models.seq2seq:Seq2Seq._bahdanau",
            "regard.attention.variants:bahdanau",
            "regard.attention.scores:Additive",
        ),
        published=Published("GRU with additive attention", "20.5 M", 28.3),
        line="additive",
    ),
    Experiment(
        recipe="multi30k-luong",
        title="Global attention",
        paper="Luong et al. 2015",
        idea=(
            "The decoder steps first and attends afterwards, with its new state as the query.",
            "The score is bilinear (Luong's general): a product of query, one matrix and key, so that all scores are "
            "computed by one matrix multiplication.",
            "State and context are then combined into the vector from which the next token is predicted.",
        ),
        equation="""
sₜ = f(sₜ₋₁, yₜ)
αₜ = softmaxᵢ(sₜ · W hᵢ)
cₜ = Σᵢ αₜᵢ hᵢ
h̃ₜ = tanh(W [sₜ; cₜ])
""",
        code=("regard.models.seq2seq:Seq2Seq._luong", "regard.attention.variants:bilinear"),
    ),
    Experiment(
        recipe="multi30k-local-m",
        title="Local attention, monotonic",
        paper="Luong et al. 2015",
        idea=(
            "Attending to all of a long source for each token costs time, and most weights are close to zero.",
            "Local attention sees only a window, the D positions on either side of a centre pₜ.",
            "In the monotonic form the centre moves by one with every generated token, as if both sentences were "
            "aligned one to one.",
        ),
        equation="""
pₜ = min(t, n)
αₜ = softmaxᵢ(sₜ · W hᵢ)                  over the i with |i − pₜ| ≤ D
""",
        code=("regard.attention.local:Monotonic", "regard.attention.local:LocalWindow"),
    ),
    Experiment(
        recipe="multi30k-local-p",
        title="Local attention, predictive",
        paper="Luong et al. 2015",
        idea=(
            "Sentences of two languages are seldom aligned one to one, so here the centre of the window is predicted "
            "from the decoder's state, anywhere in the source.",
            "A Gaussian around the centre gives near positions a larger weight than far ones.",
            "Because the weights are a smooth function of the centre, its prediction is trained by gradient descent.",
        ),
        equation="""
pₜ = n · sigmoid(v · tanh(W sₜ))
αₜ = softmaxᵢ(sₜ · W hᵢ − (i − pₜ)² / 2σ²)      over the i with |i − pₜ| ≤ D,  σ = D / 2
""",
        code=("regard.attention.local:Predictive", "regard.attention.local:GaussianBias"),
    ),
    Experiment(
        recipe="multi30k-lstmn",
        title="LSTMN: self-attention in the cell",
        paper="Cheng et al. 2016",
        idea=(
            "An LSTM has one cell that every new token is added to, and its summands cannot be separated again.",
            "The LSTMN keeps a tape of all its states and cells instead, and before each step attends over the tape "
            "to compute the summary that the step starts from.",
            "Here attention relates the tokens of one sequence to each other: self-attention, still computed one step "
            "at a time.",
        ),
        equation="""
α = softmaxᵢ(v · tanh(W [xₜ; h̃ₜ₋₁] + U hᵢ))      over the tape, i < t
(h̃ₜ; c̃ₜ) = Σᵢ αᵢ (hᵢ; cᵢ)
cₜ = f ⊙ c̃ₜ + i ⊙ ĉ,   hₜ = o ⊙ tanh(cₜ)         gates f, i, o and ĉ from xₜ and h̃ₜ
""",
        code=("regard.layers.recurrent:LSTMNLayer",),
    ),
    Experiment(
        recipe="multi30k-bytenet",
        title="ByteNet: dilated convolutions",
        paper="Kalchbrenner et al. 2016",
        idea=(
            "No recurrence and no attention: convolutions over characters, whose dilation doubles from layer to layer.",
            "So the receptive field of a few layers covers a sentence, and all positions of a layer are computed in "
            "parallel.",
            "The decoder is stacked on the encoder and takes the source vector of its own position: the representation "
            "of the source grows with its length.",
        ),
        equation="""
conv(x)ₜ = Σⱼ Wⱼ xₜ₋ⱼᵣ                    kernel of k taps, r = 1, 2, 4, …
x = x + W₂ relu(Norm(conv(relu(Norm(W₁ relu(Norm(x)))))))
decoderₜ reads [yₜ; hₜ]                    hₜ: the encoder's vector at the same position
""",
        code=("regard.models.bytenet:ByteNet", "regard.models.bytenet:DilatedBlock"),
        line="ByteNet",
    ),
    Experiment(
        recipe="multi30k-convs2s",
        title="ConvS2S: convolutions that attend",
        paper="Gehring et al. 2017",
        idea=(
            "Encoder and decoder are stacks of gated convolutions: each layer sees k neighbours, and the receptive "
            "field grows with depth.",
            "Every decoder layer has its own attention, so that a later layer depends on what earlier ones attended "
            "to.",
            "No position depends on another one's state, so in training all target positions are computed in parallel.",
        ),
        equation="""
[a; b] = W [xₜ₋ₖ₊₁ … xₜ],   vₜ = a ⊙ sigmoid(b)        in every layer
dₜ = W vₜ + yₜ
αₜ = softmaxᵢ(dₜ · hᵢ)
cₜ = Σᵢ αₜᵢ (hᵢ + eᵢ)                     eᵢ: the embedding of source token i
xₜ = xₜ + vₜ + U cₜ                       each sum times √½, which keeps the variance
""",
        code=("regard.models.convs2s:ConvDecoderLayer", "regard.models.convs2s:ConvEncoderLayer"),
        published=Published("ConvS2S", "37.4 M", 34.1),
        line="ConvS2S",
    ),
    Experiment(
        recipe="multi30k-transformer",
        title="Transformer",
        paper="Vaswani et al. 2017",
        idea=(
            "Tokens are related by attention alone: each attends to every other one, in several heads in parallel, "
            "without recurrence or convolution.",
            "Attention is invariant to the order of its keys, so position encodings are added to the embeddings.",
            "After attention a feed-forward layer is applied to each position; residual connections and layer norms "
            "allow deep stacks of such blocks.",
        ),
        equation="""
attend(Q, K, V) = softmax(Q Kᵀ / √d) V
x = x + attend(Norm(x))                   self-attention; in the decoder also cross-attention
x = x + W₂ relu(W₁ Norm(x))
""",
        code=(
            "regard.attention.variants:multihead",
            "regard.layers.blocks:Block.forward",
            "regard.models.transformer:Transformer",
        ),
        published=Published("Transformer", "9.0 M", 36.5),
        line="Transformer",
    ),
)

GERMAN = Sentence(
    "Ein kleiner Junge, der einen roten Hut trägt, hat seinen Ball in den Fluss geworfen.",
    "A little boy who is wearing a red hat has thrown his ball into the river.",
)
ENGLISH = Sentence(
    "A young woman in a red dress is playing with a black dog on the beach.",
    "Une jeune femme en robe rouge joue avec un chien noir sur la plage.",
)
PLAN = Plan(COMPARISON, ABLATIONS, LANGUAGE, GERMAN, ENGLISH)
