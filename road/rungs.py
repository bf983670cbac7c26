"""The rungs of the road in the order of their papers, and the plan of it all."""

from road.pieces import LANGUAGE, PIECES
from road.plan import Plan, Published, Rung, Sentence

ROAD = (
    Rung(
        recipe="multi30k-no-attention",
        title="No attention",
        paper="Sutskever et al. 2014",
        idea=(
            "One recurrent network reads the source piece by piece, and what it knows at the end is a single vector.",
            "A second one starts from that vector and writes the target piece by piece, each from the one before.",
            "All that the decoder will ever know of the source must pass through this one vector, and the longer the "
            "source is, the tighter it gets.",
        ),
        equation="""
h₁ … hₙ, h = reader(x₁ … xₙ)              h: the last state of both directions
s₀ = tanh(W h + b)
sₜ = f(sₜ₋₁, yₜ)
readout = tanh(W [sₜ; yₜ])
""",
        code=("regard.layers.recurrent:RNNEncoder.forward", "regard.models.seq2seq:Seq2Seq.start"),
        published=Published("LSTM without attention", "13.9 M", 13.8),
        line="no attention",
    ),
    Rung(
        recipe="multi30k-context",
        title="The last state at every step",
        paper="Cho et al. 2014",
        idea=(
            "The reader's last state is not only where the decoder starts: it is shown to the decoder again at every "
            "step.",
            "So the decoder's own state need not carry the source along, and has room for what was written so far.",
            "It is still one vector of one size, whether the source is short or long.",
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
    Rung(
        recipe="multi30k-bahdanau",
        title="Additive attention",
        paper="Bahdanau et al. 2015",
        idea=(
            "Nothing is squeezed any more: the reader keeps a state for every piece of the source.",
            "Before each step a small network compares the decoder's state with each of them, and the softmax of "
            "these scores says how much of each goes into the context.",
            "Nobody tells the decoder where to look; that, too, is learnt from pairs of sentences alone.",
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
    Rung(
        recipe="multi30k-luong",
        title="Global attention",
        paper="Luong et al. 2015",
        idea=(
            "The decoder steps first and looks afterwards, with the state that it has just reached.",
            "The comparison is a product with one matrix between query and key, called general: no small network is "
            "needed, and all comparisons are one multiplication of matrices.",
            "State and context are then combined into the vector from which the next piece is read.",
        ),
        equation="""
sₜ = f(sₜ₋₁, yₜ)
αₜ = softmaxᵢ(sₜ · W hᵢ)
cₜ = Σᵢ αₜᵢ hᵢ
h̃ₜ = tanh(W [sₜ; cₜ])
""",
        code=("regard.models.seq2seq:Seq2Seq._luong", "regard.attention.variants:bilinear"),
    ),
    Rung(
        recipe="multi30k-local-m",
        title="Local attention, monotonic",
        paper="Luong et al. 2015",
        idea=(
            "To look at all of a long source for each piece costs time, and nearly all of it is looked at in vain.",
            "Local attention sees only a window, the D places on either side of a centre pₜ.",
            "In this first form the centre moves on with every piece that is written, as if both sentences ran in "
            "step.",
        ),
        equation="""
pₜ = min(t, n)
αₜ = softmaxᵢ(sₜ · W hᵢ)                  over the i with |i − pₜ| ≤ D
""",
        code=("regard.attention.local:Monotonic", "regard.attention.local:Near"),
    ),
    Rung(
        recipe="multi30k-local-p",
        title="Local attention, predictive",
        paper="Luong et al. 2015",
        idea=(
            "Sentences of two languages seldom run in step, so here the centre of the window is predicted from the "
            "decoder's state, anywhere along the source.",
            "A Gaussian around the centre lets near places count more than far ones.",
            "Because the weights change smoothly as the centre moves, the prediction learns by gradients like all the "
            "rest.",
        ),
        equation="""
pₜ = n · sigmoid(v · tanh(W sₜ))
αₜ = softmaxᵢ(sₜ · W hᵢ − (i − pₜ)² / 2σ²)      over the i with |i − pₜ| ≤ D,  σ = D / 2
""",
        code=("regard.attention.local:Predictive", "regard.attention.local:Fading"),
    ),
    Rung(
        recipe="multi30k-lstmn",
        title="LSTMN: a cell that looks back",
        paper="Cheng et al. 2016",
        idea=(
            "An LSTM has one cell into which every new piece must be mixed, and what was mixed cannot be told apart "
            "again.",
            "The LSTMN keeps a tape of all its states and cells instead, and before each step attends over the tape "
            "to make the summary that it goes on from.",
            "Here attention relates the pieces of one and the same sequence to each other: self-attention, still one "
            "step at a time.",
        ),
        equation="""
α = softmaxᵢ(v · tanh(W [xₜ; h̃ₜ₋₁] + U hᵢ))      over the tape, i < t
(h̃ₜ; c̃ₜ) = Σᵢ αᵢ (hᵢ; cᵢ)
cₜ = f ⊙ c̃ₜ + i ⊙ ĉ,   hₜ = o ⊙ tanh(cₜ)         gates f, i, o and ĉ from xₜ and h̃ₜ
""",
        code=("regard.layers.recurrent:LSTMNLayer",),
    ),
    Rung(
        recipe="multi30k-bytenet",
        title="ByteNet: dilated convolutions",
        paper="Kalchbrenner et al. 2016",
        idea=(
            "No recurrence and no attention: convolutions read characters, and the gaps between the places that they "
            "join double from layer to layer.",
            "So a few layers reach across a whole sentence, and all places of a layer are computed at once.",
            "The decoder stands on top of the reader and takes the source's vector at its own place: what is kept of "
            "the source grows with its length.",
        ),
        equation="""
conv(x)ₜ = Σⱼ Wⱼ xₜ₋ⱼᵣ                    kernel of k taps, r = 1, 2, 4, …
x = x + W₂ relu(Norm(conv(relu(Norm(W₁ relu(Norm(x)))))))
decoderₜ reads [yₜ; hₜ]                    hₜ: the reader's vector at the same place
""",
        code=("regard.models.bytenet:ByteNet", "regard.models.bytenet:Dilated"),
        line="ByteNet",
    ),
    Rung(
        recipe="multi30k-convs2s",
        title="ConvS2S: convolutions that attend",
        paper="Gehring et al. 2017",
        idea=(
            "Encoder and decoder are stacks of convolutions whose results pass a gate: each layer sees k neighbours, "
            "and layers on top of each other see further.",
            "Every layer of the decoder has an attention of its own, so that a later layer knows what the earlier "
            "ones saw.",
            "No place waits for another one's state, so a whole target is computed at once while training.",
        ),
        equation="""
[a; b] = W [xₜ₋ₖ₊₁ … xₜ],   vₜ = a ⊙ sigmoid(b)        in every layer
dₜ = W vₜ + yₜ
αₜ = softmaxᵢ(dₜ · hᵢ)
cₜ = Σᵢ αₜᵢ (hᵢ + eᵢ)                     eᵢ: the embedding of source piece i
xₜ = xₜ + vₜ + U cₜ                       each sum times √½, so that variance stays
""",
        code=("regard.models.convs2s:ConvDecoderLayer", "regard.models.convs2s:ConvEncoderLayer"),
        published=Published("ConvS2S", "37.4 M", 34.1),
        line="ConvS2S",
    ),
    Rung(
        recipe="multi30k-transformer",
        title="Transformer",
        paper="Vaswani et al. 2017",
        idea=(
            "Attention is all that joins the pieces: each looks at every other one, in several heads side by side, "
            "and neither recurrence nor convolution is left.",
            "Attention does not know the order of what it sees, so positions are added to the embeddings.",
            "Between two looks a feed-forward layer works on each place alone, and residual paths and norms let such "
            "blocks be stacked.",
        ),
        equation="""
attend(Q, K, V) = softmax(Q Kᵀ / √d) V
x = x + attend(Norm(x))                   itself, then in the decoder the source
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
PLAN = Plan(ROAD, PIECES, LANGUAGE, GERMAN, ENGLISH)
