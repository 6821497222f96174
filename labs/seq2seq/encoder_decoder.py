"""Encoder-decoders: the config that their families share, and how their models are built.

A family states its norms, positions and biases; `build` composes them with the shared layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.errors import DataError, UsageError
from cloze.model.families.config import ModelConfig, Probability
from cloze.model.families.hub_format import HubFormat

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cloze.labs.seq2seq.decoder import Seq2SeqModel
    from cloze.model.layers.encoder import EncoderLayer
    from cloze.model.layers.heads import Pooler
    from cloze.pipeline.tokenizer.special import SpecialTokens


class EncoderDecoderConfig(ModelConfig):
    """Config of an encoder and a decoder of one width."""

    heads: ClassVar[Mapping[str, Any]] = {"seq2seq": {}}
    own_objectives: ClassVar[tuple[str, ...]] = ("infilling",)
    is_encoder_decoder: ClassVar[bool] = True
    computes_with_padding: ClassVar[bool] = True
    supports_compile: ClassVar[bool] = False  # not measured
    supports_causal: ClassVar[bool] = False
    supports_pruned_heads: ClassVar[bool] = False
    supports_onnx: ClassVar[bool] = False

    type_vocab_size: Literal[0] = 0

    activation_dropout: Probability = 0.0
    """Dropout inside the feed-forward block, before its output projection."""

    num_decoder_layers: Annotated[int, Field(ge=0)] = 0
    """Number of decoder layers. 0: num_hidden_layers."""

    eos_token_id: Annotated[int, Field(ge=0)] = 2
    """Id of the token that ends a text; from a dataset, its [SEP]."""

    label_smoothing: Probability = 0.0
    """Share of the target distribution that is spread over the vocabulary in training (Szegedy et
    al., 2016)."""

    sentinels: Annotated[int, Field(ge=0)] = 0
    """Ids behind a dataset's vocabulary that stand for removed spans (T5's <extra_id_0> …)."""

    @property
    def decoder_layers(self) -> int:
        return self.num_decoder_layers or self.num_hidden_layers

    @property
    def start_token_id(self) -> int:  # type: ignore[override]
        return self.pad_token_id

    @property
    def decoder_layer_weights(self) -> int:
        return self.layer_weights + 4 * self.hidden_size * self.attention_width

    @property
    def weights_outside_layers(self) -> int:
        tables = (self.vocab_size + 2 * self.max_position_embeddings) * self.hidden_size
        return tables + self.decoder_layers * self.decoder_layer_weights

    def vocabulary_values(self, size: int, special: SpecialTokens) -> dict[str, Any]:
        values = super().vocabulary_values(size + self.sentinels, special)
        return {**values, "eos_token_id": special.sep}


def check_start(config: Mapping[str, Any]) -> None:
    """Check that the decoder starts with padding.

    Raises:
        DataError: Hugging Face's config names another token.
    """
    start, pad = config.get("decoder_start_token_id"), config["pad_token_id"]
    if start not in (None, pad):
        raise DataError(
            f"decoder_start_token_id ({start}) must be pad_token_id ({pad}); use another model"
        )


def build_pooler(config: ModelConfig) -> Pooler:
    """Build a dense layer on the decoder's last state (transformers' `BartClassificationHead`)."""
    from cloze.labs.left_to_right import LastPooler

    return LastPooler(config.hidden_size)


NO_CLASS = "transformers has no such class that reads the decoder's states"


class Seq2SeqFormat(HubFormat):
    """Hugging Face format of an encoder-decoder; classes read the last state of the decoder."""

    refused = dict.fromkeys(("classifier", "span", "token_classifier", "choice"), NO_CLASS)

    def to_config(
        self, model: ModelConfig, heads: Mapping[str, Any], task: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """See `HubFormat.to_config`; raises UsageError for a model that reads passages."""
        from cloze.labs.seq2seq.rag import RETRIEVAL

        if RETRIEVAL in (task or {}):
            raise UsageError(
                "this checkpoint reads passages of an index, and has no Hugging Face form; use it "
                "by `cloze generate`"
            )
        return super().to_config(model, heads, task)

    def probe(
        self, model: Any, heads: Mapping[str, Any], pieces: str, batch: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Give each row one end token, its last: classifiers read the state there."""
        ids, end = batch["input_ids"], model.eos_token_id
        ids = ids.where(ids != end, end + 1)
        last = batch["attention_mask"].sum(dim=1, keepdim=True) - 1
        return {**batch, "input_ids": ids.scatter(1, last, end)}


def build(
    config: EncoderDecoderConfig,
    *,
    norm: type[nn.Module] | None = None,
    pre_norm: bool = False,
    embedding_norm: bool = False,
    bias: bool = True,
    gated: bool = False,
    query_scale: float = 1.0,
    relative: Mapping[str, int] | None = None,
    tied: bool = True,
    logit_scale: float = 1.0,
    activation_dropout: float | None = None,
    fan_in: bool = False,
    **embedding_options: Any,
) -> Seq2SeqModel:
    """Build the model.

    Args:
        norm: class of the norms. Default: LayerNorm.
        pre_norm: normalize each block's input and the output of encoder and decoder.
        embedding_norm: normalize the embeddings.
        bias: use biases in attention and feed-forward.
        gated: use gated feed-forward blocks.
        query_scale: see `SelfAttention`.
        relative: `buckets` and `farthest` of `RelativeBias`; None: no relative positions.
        tied: use the word embeddings as output matrix.
        logit_scale: factor of the states before the output matrix.
        activation_dropout: dropout inside feed-forward blocks. Default: the config's.
        fan_in: see `EncoderDecoder`.
        embedding_options: further arguments of `Embeddings`.
    """
    from torch import nn

    from cloze.labs.left_to_right import TiedHead
    from cloze.labs.seq2seq.decoder import CrossAttention, DecoderIds, EncoderDecoder, Seq2SeqModel
    from cloze.labs.seq2seq.kv_cache import RelativeBias
    from cloze.model.layers.attention import SelfAttention
    from cloze.model.layers.cpu import Linear
    from cloze.model.layers.embeddings import Embeddings
    from cloze.model.layers.encoder import Encoder, EncoderLayer, FeedForward

    width, heads, norm_class = config.hidden_size, config.num_attention_heads, norm or nn.LayerNorm

    def new_norm() -> nn.Module:
        return norm_class(width, eps=config.layer_norm_eps)

    def attention(kind: type[SelfAttention], bias_table: Any = None, causal: bool = False) -> Any:
        return kind(
            width,
            heads,
            head_size=config.head_size,
            dropout=config.attention_dropout,
            bias=bias,
            causal=causal,
            relative=bias_table,
            query_scale=query_scale,
        )

    def table(words: nn.Module | None, causal: bool) -> Embeddings:
        made = Embeddings(
            config.vocab_size,
            width,
            **{"max_positions": config.max_position_embeddings, **embedding_options},
            segments=0,
            norm=new_norm() if embedding_norm else nn.Identity(),
            dropout=config.hidden_dropout,
            words=words,
        )
        if relative is not None:
            made.add_module("relative", RelativeBias(heads, causal=causal, **relative))
        return made

    def layer(table: Embeddings, decodes: bool) -> EncoderLayer:
        blocks = ("attention", *(("cross_attention",) if decodes else ()), "feed_forward")
        norms = {f"{block}{'_input' if pre_norm else ''}_norm": new_norm() for block in blocks}
        return EncoderLayer(
            attention(SelfAttention, getattr(table, "relative", None), decodes),
            FeedForward(
                width,
                config.intermediate_size,
                activation=config.hidden_act,
                gated=gated,
                split=True,
                bias=bias,
                dropout=(
                    config.activation_dropout if activation_dropout is None else activation_dropout
                ),
            ),
            dropout=config.hidden_dropout,
            cross_attention=attention(CrossAttention) if decodes else None,
            **norms,
        )

    encoder_table = table(None, causal=False)
    decoder_table = table(encoder_table.word, causal=True)
    decoder = Encoder(
        decoder_table,
        [layer(decoder_table, decodes=True) for _ in range(config.decoder_layers)],
        new_norm() if pre_norm else None,
    )
    return Seq2SeqModel(
        EncoderDecoder(
            encoder_table,
            [layer(encoder_table, decodes=False) for _ in range(config.num_hidden_layers)],
            new_norm() if pre_norm else None,
            decoder,
            dropout=config.hidden_dropout if pre_norm else 0.0,
            ids=DecoderIds(
                config.start_token_id,
                config.eos_token_id,
                config.pad_token_id,
                config.first_target_id,
            ),
            head=TiedHead(logit_scale),
            output=None if tied else Linear(width, config.vocab_size, bias=False),
            fan_in=fan_in,
        ),
        config.label_smoothing,
    )
