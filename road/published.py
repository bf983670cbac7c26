"""Published results, each with its source. These are the only results here that are typed by hand."""

PUBLISHED_SOURCE = "bentrevett/pytorch-seq2seq"

WMT14 = (  # system, English → German, English → French, where
    ("RNNencdec-50, no attention", "", "17.82", "Bahdanau et al. 2015, table 1"),
    ("RNNsearch-50, additive attention", "", "26.75", "Bahdanau et al. 2015, table 1"),
    ("stacked LSTM, no attention", "11.3", "", "Luong et al. 2015, table 1"),
    ("the same, source reversed, dropout", "14.0", "", "Luong et al. 2015, table 1"),
    ("the same with global attention", "16.8", "", "Luong et al. 2015, table 1"),
    ("the same with input feeding", "18.1", "", "Luong et al. 2015, table 1"),
    ("the same with local-p attention instead of global", "19.0", "", "Luong et al. 2015, table 1"),
    ("ByteNet", "23.75", "", "Vaswani et al. 2017, table 2"),
    ("ConvS2S", "25.16", "40.46", "Vaswani et al. 2017, table 2"),
    ("Transformer, base", "27.3", "38.1", "Vaswani et al. 2017, table 2"),
    ("Transformer, big", "28.4", "41.8", "Vaswani et al. 2017, table 2"),
)
