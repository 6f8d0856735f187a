"""The MD5 sums of the few-shot splits of Gao et al. (2021), from the file ``data/k-shot/checksum`` of their repository.

They were made from the copies of GLUE that the authors gave out. From the official files come the same splits, but:
the authors' dev.tsv of CoLA lacks the last line's end, which changes the sum of the test set alone; and none of their
sums for SST-2 can be had from the official files, perhaps because theirs were another edition.
"""

# task -> seed -> sums of the training and of the development set.
SPLITS = {
    "CoLA": {
        100: ("c02bce246a4481b2733522d82200d81e", "fda65a964d3ebeec632f8c45fac8209e"),
        13: ("8b3b16bdc7ccdf7c5e0397caf1ce61c1", "2a3b6875b91447043e5fc7366d6d6c59"),
        21: ("9af338ce1d82a300b1d09e06da913454", "ad4bd1c5d1bbc9cb149cc10648ade05f"),
        42: ("35870db90cf9b4044159d49cf4c4a620", "6f2b371c0fa209c253d49e20941d44c5"),
        87: ("f0260a425124e254cef6c41e78c3b990", "30975efe3642c02d2afaf6fa6849b5b1"),
    },
    "SST-2": {
        100: ("f5079b5b5bd27087a7d836e7e8faedc7", "1d65f0f67026bbdcbfef6ed3ada2510a"),
        13: ("fe166f3b9e9952cb729a8d2c3bd682ae", "0eeeb2195d82899d15ab5eeaddcaa944"),
        21: ("6661938fcefe356e8c9c3f866b67c047", "74a12c79dea73deb5526c398b1bc7bc0"),
        42: ("edce4c52734c2084476ac03bfdfa5c77", "4ba7f2ffe0fc89844d1184f294f15774"),
        87: ("783b9e625ec6dea210cc4062d464aba2", "2972df0d5eace29b48eb8ce77770c3d5"),
    },
    "MRPC": {
        100: ("29d9a7598589c1636f64c7cf3dd25de8", "f65a7cbec81d738f594db0040fb32610"),
        13: ("4ee5a1591a6b385ed235dff1fe0bc2ff", "55da0a2ef25c0bdda9ba0bbe1a757644"),
        21: ("17f3132a74d23a122c8e8bc6936de492", "2f0e716c6a5ddaf45d03d0b48075fd5a"),
        42: ("f96a9434f7cdef032f544f405498c266", "a2a9648bec87318674338caed2538091"),
        87: ("cad49c8459f1eef52093b9527ec87735", "b9664f662b04ec18feb8605462a8a1cb"),
    },
    "QQP": {
        100: ("b6a7ea69840e305608faabd068a74f06", "136f4a247a897a80285a1e215a850d0a"),
        13: ("89173509ae29f234632fe2e7805860ba", "14a3c59ae8a5298372923dadc3c86012"),
        21: ("ce7ed8d40a8e0c090b8c4634914ef895", "c29687f39ece2c692efca3ade0b91912"),
        42: ("88f2cc2d8a4c7b691099a47794ce2aee", "c1b2198ba8a84976bb1084c164418234"),
        87: ("7110878494e561015e94fe459115c92c", "cb7a47bad6671d75a93ec2db13c7964a"),
    },
    "STS-B": {
        100: ("5f8d5211ff72f49ebf181b63e6390449", "d826c4b3fa6d419aed50442b7f1f6adc"),
        13: ("634047695a8036cfe2523cbbc58f2fbb", "f17c612f0da73b1599a9946b1e8c7d06"),
        21: ("af75494229a00b1ea764e7e38a3fbcf8", "a79b76d7ee8efcb7cdefb4056b0606b8"),
        42: ("c4577d13b90f33d9a61ca7abb8126132", "08b70fdb9484181f9331409329cd2259"),
        87: ("c1a41f8d2a0867802920e447b4e6e73b", "430153037049cab16d6141e766b4cca2"),
    },
    "MNLI": {
        100: ("288a569addee0a37675ba0d27bb5cf9a", "2139f9ecc2aabf761ca904a7ecfa2652"),
        13: ("6c61998bef38ccadacc2df0013035715", "5e84a205fcb8c20d8706df7e5cc7c03f"),
        21: ("139ce8bcc9b973b164fe2065a507819a", "5da136973f2ccb8c3cd421c74cf343e8"),
        42: ("5adecf01452cdd271940d5d7f094c77e", "c51ee1e3afccc39cd4f4fd660f6b547f"),
        87: ("c2540989877d39d56aa34f503bf8d145", "f53efd36c22ed01af9b61ee6f917a714"),
    },
    "QNLI": {
        100: ("85c42afc824ac7a0474ccc42239f664c", "9f193ffb9e102d28a25524f9a778b819"),
        13: ("4fd9e83941409d616f67a4fb6e68206b", "a54657913dd71710bb0eff9b8c044746"),
        21: ("f316c511c6990c2648b821b99351f185", "f7dd6b59f755d86a00395d2ee7fc4938"),
        42: ("edbea1a802d48db725c61d487597ab60", "e0d03f6166b24a8c16985e32a8315427"),
        87: ("2bcc47b08f67553f5e9f45991af07d10", "2b7f1fc57c802433c59357f659888a08"),
    },
    "RTE": {
        100: ("548d8775d98ca0638615b9e0bfbe5c32", "bc66584b1fa19f9620051e8db7bcc1dc"),
        13: ("0aaae3483435626089adbc4ae851b75d", "8fc45ab58e72e16cf90547710f3b5d15"),
        21: ("79490f931a776fad7f3b2ba31f9142d1", "96ac052f30101901e6bc04adb4875edb"),
        42: ("4d45391333d2f56d16633d7b85d3e051", "a64069d0ca424995d35e05e67c03ceb9"),
        87: ("46af88a12bc44c12a40ea2cb79e94837", "19ee5593b53d1b290737eb9de2ca4869"),
    },
}

# task -> file of the test set -> its sum, the same for all seeds.
TESTS = {
    "CoLA": {"test.tsv": "c5475ccefc9e7ca0917294b8bbda783c"},
    "SST-2": {"test.tsv": "aeac355ccdb43bc747e816eff2d74aa4"},
    "MRPC": {"test.tsv": "185958e46ba556b38c6a7cc63f3a2135"},
    "QQP": {"test.tsv": "cff6a448d1580132367c22fc449ec214"},
    "STS-B": {"test.tsv": "5f4d6b0d2a5f268b1b56db773ab2f1fe"},
    "MNLI": {
        "test_matched.tsv": "c3fa2817007f4cdf1a03663611a8ad23",
        "test_mismatched.tsv": "b219e6fe74e4aa779e2f417ffe713053",
    },
    "QNLI": {"test.tsv": "1e81e211959605f144ba6c0ad7dc948b"},
    "RTE": {"test.tsv": "973cb4178d4534cf745a01c309d4a66c"},
}
