"""Hand-built operator graphs for tests of the torch-free core: no tracing, every size chosen here."""

from autoshard.ir import (
    Activation,
    Add,
    Attention,
    Block,
    Dim,
    Embedding,
    ExpertsLinear,
    FusedOp,
    Linear,
    Norm,
    OpGraph,
    Param,
    Router,
)


def _param(fqn: str, *shape: int) -> Param:
    return Param(fqn=fqn, shape=shape, dtype="bfloat16")


class GraphMaker:
    """Builds blocks with one set of sizes."""

    def __init__(
        self,
        *,
        hidden: int = 64,
        heads: int = 8,
        kv_heads: int = 4,
        head_dim: int = 16,
        experts: int = 8,
        top_k: int = 2,
        intermediate: int = 96,
        vocab: int = 256,
        tied: bool = False,
    ) -> None:
        self.hidden = Dim(name="hidden", size=hidden)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.experts = Dim(name="experts", size=experts)
        self.top_k, self.tied = top_k, tied
        self.inter = Dim(name="intermediate", size=intermediate)
        self.vocab = Dim(name="vocab", size=vocab)

    def norm(self, name: str, fqn: str, source: str) -> Norm:
        w = self.hidden
        return Norm(
            name=name, fqn=fqn, inputs=(source,), params=(_param(f"{fqn}.weight", w.size),), width=w, group=w.size
        )

    def linear(self, name: str, fqn: str, source: str, i: Dim, o: Dim, *, is_head: bool = False) -> Linear:
        weight = _param(f"{fqn}.weight", o.size, i.size)
        return Linear(name=name, fqn=fqn, inputs=(source,), params=(weight,), in_dim=i, out_dim=o, is_head=is_head)

    def attention_ops(self, prefix: str) -> tuple[FusedOp, ...]:
        q = Dim(name="heads*head_dim", size=self.heads * self.head_dim)
        kv = Dim(name="kv_heads*head_dim", size=self.kv_heads * self.head_dim)
        a = f"{prefix}.self_attn"
        return (
            self.norm("attn_norm", f"{prefix}.input_layernorm", "input"),
            self.linear("q", f"{a}.q_proj", "attn_norm", self.hidden, q),
            self.linear("k", f"{a}.k_proj", "attn_norm", self.hidden, kv),
            self.linear("v", f"{a}.v_proj", "attn_norm", self.hidden, kv),
            Attention(
                name="attention",
                fqn=a,
                inputs=("q", "k", "v"),
                heads=Dim(name="heads", size=self.heads),
                kv_heads=Dim(name="kv_heads", size=self.kv_heads),
                qk_dim=self.head_dim,
                v_dim=self.head_dim,
            ),
            self.linear("o", f"{a}.o_proj", "attention", q, self.hidden),
            Add(name="attn_add", fqn=prefix, inputs=("input", "o"), width=self.hidden),
            self.norm("ffn_norm", f"{prefix}.post_attention_layernorm", "attn_add"),
        )

    def moe_ops(self, prefix: str) -> tuple[FusedOp, ...]:
        e, h, i, k = self.experts, self.hidden, self.inter, self.top_k
        mlp = f"{prefix}.mlp"
        up = Dim(name="2*intermediate", size=2 * i.size)
        return (
            Router(
                name="router",
                fqn=f"{mlp}.gate",
                inputs=("ffn_norm",),
                params=(_param(f"{mlp}.gate.weight", e.size, h.size),),
                hidden=h,
                experts=e,
                top_k=k,
            ),
            ExpertsLinear(
                name="experts_up",
                fqn=f"{mlp}.experts",
                inputs=("ffn_norm", "router"),
                params=(_param(f"{mlp}.experts.gate_up_proj", e.size, up.size, h.size),),
                stage="up",
                experts=e,
                in_dim=h,
                out_dim=up,
                top_k=k,
                packed=2,
            ),
            Activation(
                name="experts_act",
                fqn=f"{mlp}.experts",
                inputs=("experts_up",),
                width=i,
                num_inputs_wide=2,
                top_k=k,
                routed=True,
            ),
            ExpertsLinear(
                name="experts_down",
                fqn=f"{mlp}.experts",
                inputs=("experts_act",),
                params=(_param(f"{mlp}.experts.down_proj", e.size, h.size, i.size),),
                stage="down",
                experts=e,
                in_dim=i,
                out_dim=h,
                top_k=k,
            ),
            Add(name="ffn_add", fqn=prefix, inputs=("attn_add", "experts_down"), width=h),
        )

    def dense_ops(self, prefix: str) -> tuple[FusedOp, ...]:
        mlp = f"{prefix}.mlp"
        return (
            self.linear("gate", f"{mlp}.gate_proj", "ffn_norm", self.hidden, self.inter),
            self.linear("up", f"{mlp}.up_proj", "ffn_norm", self.hidden, self.inter),
            Activation(name="act", fqn=mlp, inputs=("gate", "up"), width=self.inter, num_inputs_wide=2),
            self.linear("down", f"{mlp}.down_proj", "act", self.inter, self.hidden),
            Add(name="ffn_add", fqn=prefix, inputs=("attn_add", "down"), width=self.hidden),
        )

    def block(self, kind: str, name: str, layers: list[int]) -> Block:
        prefixes = tuple(f"model.layers.{i}" for i in layers)
        ffn = self.moe_ops if kind == "moe" else self.dense_ops
        return Block(name=name, instances=prefixes, ops=(*self.attention_ops(prefixes[0]), *ffn(prefixes[0])))

    def graph(self, kinds: str) -> OpGraph:
        """A model with one layer per letter: ``m`` for routed experts, ``d`` for a dense MLP."""
        found = {"m": [i for i, k in enumerate(kinds) if k == "m"], "d": [i for i, k in enumerate(kinds) if k == "d"]}
        names = {"m": ("moe", "moe_layers"), "d": ("dense", "dense_layers")}
        order = [k for k in dict.fromkeys(kinds)]
        single = len(order) == 1
        blocks = tuple(self.block(names[k][0], "layers" if single else names[k][1], found[k]) for k in order)
        table = _param("model.embed_tokens.weight", self.vocab.size, self.hidden.size)
        embed = Embedding(
            name="embed",
            fqn="model.embed_tokens",
            inputs=("input",),
            params=(table,),
            vocab=self.vocab,
            hidden=self.hidden,
        )
        head = self.linear("head", "lm_head", "final_norm", self.hidden, self.vocab, is_head=True)
        if self.tied:
            shared = Param(
                fqn="lm_head.weight",
                shape=(self.vocab.size, self.hidden.size),
                dtype="bfloat16",
                shared_with="model.embed_tokens.weight",
            )
            head = Linear(
                name="head",
                fqn="lm_head",
                inputs=("final_norm",),
                params=(shared,),
                in_dim=self.hidden,
                out_dim=self.vocab,
                is_head=True,
            )
        return OpGraph(
            model_name="hand-built",
            model_class="HandBuilt",
            dtype="bfloat16",
            prologue=Block(name="prologue", instances=("",), ops=(embed,)),
            blocks=blocks,
            epilogue=Block(
                name="epilogue", instances=("",), ops=(self.norm("final_norm", "model.norm", "input"), head)
            ),
            layers=tuple(order.index(k) for k in kinds),
        )


def mixtral_like() -> OpGraph:
    """Mixtral-8x7B's sizes (from its published config)."""
    maker = GraphMaker(
        hidden=4096, heads=32, kv_heads=8, head_dim=128, experts=8, top_k=2, intermediate=14336, vocab=32000
    )
    return maker.graph("m" * 32)
