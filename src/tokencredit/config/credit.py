"""Methods of the credit stage: one number per token."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tokencredit.config.base import (
    CODE,
    OURS,
    PAPER,
    PAPER_AND_CODE,
    READING,
    REVISIONS,
    Count,
    CountOrZero,
    MethodConfig,
    NonNegative,
    OnlyWhen,
    Origin,
    Positive,
    PositiveShare,
    Share,
)

ShareBelowOne = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class CreditBase(MethodConfig):
    stage = "credit"
    differs_within_response: ClassVar[bool] = True
    """False: every token of a response receives the same credit."""
    sees_one_response: ClassVar[bool] = False
    """One response's advantage and log-probs determine its credit, so a function hook can compute it."""
    sums_to: ClassVar[str | None] = None
    """The method never reads the advantage; a response's credit sums to this one."""

    @property
    def needs_head(self) -> bool:
        """The method reads the LM-head weight."""
        return False

    @property
    def needs_step_marks(self) -> bool:
        """The task must mark where reasoning steps begin."""
        return False

    @property
    def imitates_ranks(self) -> str | None:
        """How the method imitates the ranks of a distributed trainer, and the setting that does not."""
        return None

    @property
    def averages_over_kept_tokens(self) -> bool:
        """The method scales credit so that a mean over all tokens is a mean over the credited ones."""
        return False


class UniformCredit(CreditBase):
    """Every token receives the response's advantage."""

    formula = "a_it = A_i"
    differs_within_response = False
    sees_one_response = True

    type: Literal["uniform"] = "uniform"


class DeltaCredit(CreditBase):
    """DelTA: weigh a token by how much nearer its gradient is to its own side's centroid."""

    formula = (
        "a_it = A_i lam_it / mean(lam),  lam_it = lam_min + (lam_max - lam_min) sigmoid(+-D_it / gamma),  "
        "D_it = |v_it - mu-|^2 - |v_it - mu+|^2,  v_it = (1 - p_it) h_it"
    )
    caveats = (
        "reading: a scope in which one side has no mass gets coefficient 1",
        "published numbers were obtained with statistics per data-parallel shard (scope shard)",
        "coefficients differ by side, so shared tokens of a group no longer cancel exactly",
    )
    needs = {"logp": "weighs a token's hidden state by 1 - p", "hidden": "compares hidden states"}

    type: Literal["delta"] = "delta"
    lam_min: Annotated[NonNegative, PAPER_AND_CODE] = 0.8
    """Coefficient before normalisation at score 0."""
    lam_max: Annotated[Positive, PAPER_AND_CODE] = 1.2
    """Coefficient before normalisation at score 1."""
    refinements: Annotated[CountOrZero, PAPER_AND_CODE] = 1
    """Times the centroids are refined; 0 is an ablation."""
    scope: Annotated[Literal["batch", "group", "shard"], Origin("paper; released code: shard")] = "batch"
    """Over which tokens statistics are taken."""
    shards: Annotated[Count, CODE, OnlyWhen("scope", ("shard",))] = 2
    """Shards when scope is shard (the authors' runs had 2)."""
    proxy: Annotated[Literal["row", "hidden-gradient", "head"], PAPER_AND_CODE] = "row"
    """Token-gradient vector: (1-p)h, top-K d log p/dh, or the exact LM-head gradient."""
    top_k: Annotated[Count, READING, OnlyWhen("proxy", ("hidden-gradient",))] = 32
    """Vocabulary entries of the hidden-gradient proxy (not published)."""
    temperature: Annotated[Literal["adaptive", "first-batch", "constant"], PAPER_AND_CODE] = "adaptive"
    """Where the margins' scale comes from."""
    constant_gamma: Annotated[Positive, READING, OnlyWhen("temperature", ("constant",))] = 1.0
    """The scale when temperature is constant."""
    gamma_scale: Annotated[Positive, CODE] = 1.0
    """Multiplies the measured temperature."""
    score: Annotated[Literal["contrast", "own-side", "random"], PAPER] = "contrast"
    """contrast is DelTA; own-side and random are its ablations."""
    assignment: Annotated[Literal["soft", "hard"], PAPER] = "soft"
    """hard is the ablation without the entropy term."""
    coefficient_map: Annotated[Literal["bounded", "raw", "symmetric"], PAPER] = "bounded"
    """raw is an ablation; symmetric gives a token the same coefficient on either side (ours)."""
    normalize: Annotated[bool, PAPER] = True
    """Divide by the mean coefficient."""
    momentum: Annotated[ShareBelowOne, OURS, OnlyWhen("score", ("contrast",))] = 0.0
    """Share of past steps in the direction between the centroids; 0 forgets them (ours)."""

    @property
    def compares_siblings(self) -> str | None:
        return "separates the sides of a group (credit.scope 'group')" if self.scope == "group" else None

    @property
    def needs_negative_side(self) -> str:
        return "has no negative side to work on"

    @property
    def keeps_state(self) -> str | None:
        if self.temperature == "first-batch":
            return "remembers the first batch's temperature (credit.temperature 'first-batch'; 'adaptive' does not)"
        if self.momentum:
            return "remembers the direction between the centroids (credit.momentum; 0 does not)"
        return None

    @property
    def needs_head(self) -> bool:
        return self.proxy != "row"

    @property
    def imitates_ranks(self) -> str | None:
        if self.scope != "shard":
            return None
        return "credit.scope 'shard' imitates ranks by cutting the rows of one process; use 'batch' or 'group'"

    @model_validator(mode="after")
    def _ordered(self) -> "DeltaCredit":
        if self.lam_min > self.lam_max:
            raise ValueError(f"lam_min is {self.lam_min} and lam_max is {self.lam_max}; lam_min must not be above lam_max")
        if self.score == "own-side" and self.coefficient_map == "symmetric":
            raise ValueError("credit.coefficient_map 'symmetric' needs credit.score 'contrast': own-side distances differ by side")
        if self.score == "own-side" and self.assignment == "hard":
            raise ValueError("credit.assignment 'hard' needs credit.score 'contrast': minus a distance is never above 0")
        return self


class NtfCredit(CreditBase):
    """Negative token filtering: of a response with negative advantage only the least probable tokens are penalised."""

    formula = "a_it = A_i [A_i >= 0 or t among the ceil(keep x T_i) least probable tokens of i];  divisors count every token"
    caveats = (
        "reading: keep (not mask) 10 %, after a paper-aligned reproduction",
        "reading: ranked by the log-probs of the scoring pass, ties by position, rounded up",
        "shared tokens are penalised less than they are rewarded, so they do not cancel",
    )
    needs = {"logp": "ranks a response's tokens by probability"}
    sees_one_response = True

    type: Literal["ntf"] = "ntf"
    keep: Annotated[PositiveShare, Origin("a paper-aligned reproduction")] = 0.1
    """Share of a negative response's tokens that keep their credit."""

    @property
    def needs_negative_side(self) -> str:
        return "has no negative side to work on"


class NtfKeepCredit(CreditBase):
    """Negative token filtering that keeps exploration: the filter fades as entropy falls, or its pull on entropy is taken out."""

    formula = (
        "a_it = A_i c_it of ntf with share keep_n = 1 - (1 - keep) r_n,  r_n from 1 to 0 as the batch's entropy falls from the floor to "
        "half of it, or by steps;  on chosen tokens a' = a - s (a.s) / (s.s),  s_it = E[f | H_it] - f_it,  f = p (log p + H)"
    )
    caveats = (
        "ours; the filter itself is ntf's",
        "the slope s is that of a tabular softmax policy: parameters that tokens share are not in it",
        "E[f | H] is estimated from the batch's tokens of like entropy",
        "the entropy of the first batch is the one that the floor is a share of",
    )
    needs = {"logp": "ranks a response's tokens by probability", "entropy": "ranks by the entropy of the batch's tokens"}

    type: Literal["ntf-keep"] = "ntf-keep"
    keep: Annotated[PositiveShare, OURS] = 0.3
    """Share of a negative response's tokens that keep their credit at full strength."""
    anneal: Annotated[Literal["none", "entropy", "steps"], OURS] = "entropy"
    """What makes the share grow to 1: entropy below its floor, the number of steps, or nothing."""
    entropy_floor: Annotated[Positive, OURS, OnlyWhen("anneal", ("entropy",))] = 0.5
    """Share of the first batch's entropy below which the filter fades; at half of it the filter is gone."""
    anneal_steps: Annotated[Count, OURS, OnlyWhen("anneal", ("steps",))] = 50
    """Steps over which the share grows from keep to 1."""
    orthogonal: Annotated[Literal["none", "kept", "all"], OURS] = "none"
    """Which tokens' credit is made orthogonal to the entropy slopes: none, the kept negative tokens, or all credited tokens."""

    @property
    def needs_negative_side(self) -> str:
        return "has no negative side to work on"

    @property
    def keeps_state(self) -> str | None:
        remembered = {"entropy": "the first batch's entropy", "steps": "the number of steps"}.get(self.anneal)
        return None if remembered is None else f"remembers {remembered}"


class SiblingCreditBase(CreditBase):
    after: Annotated[Literal["token", "next"], OURS] = "token"
    """The value after a token: the mean over siblings that wrote the same token at a similar position, or the value at the next position
    (at the last token, the response's own advantage)."""
    position_width: Annotated[Positive | None, OURS] = None
    """Positions further apart than about this share of the group's longest response are not compared; none: no limit."""
    shrinkage: Annotated[NonNegative, OURS] = 1.0
    """Weight of the uncertainty that draws a token's credit back to its response's advantage; 0 trusts every value."""
    normalize: Annotated[bool, OURS] = True
    """Scale the batch's credit so that its mean size is that of uniform credit."""

    @property
    def compares_siblings(self) -> str:
        return "values tokens by siblings"


_SIBLING_FORMULA = (
    "a_it = (1 - l_it) A_i + l_it (V'_it - V_it),  V_it = sum_j w_itj A_j / n_it over siblings j != i,  n_it = sum_j w_itj,  "
    "V' by those who wrote the same token (w', n'),  l = var A / (var A + shrinkage s2 u),  u = 1 / n + 1 / n' - 2 sum_j w_j w'_j / (n n')"
)
_SIBLING_CAVEATS = (
    "ours: the counterfactual comparison that IBPO's abstract describes, without revisions",
    "a response without neighbours receives uniform credit; a group of one too",
    "credit may have the other sign than the advantage; a response with advantage 0 receives nothing",
)


class SiblingValueCredit(SiblingCreditBase):
    """What a token added to the value of its response, valued by the siblings that passed through like hidden states."""

    formula = f"{_SIBLING_FORMULA};  w_itj = max_s exp(-|h_it - h_js|^2 / (2 (width x median)^2))"
    caveats = (*_SIBLING_CAVEATS, "hidden states also tell where in the response a token stands, and how it is laid out")
    needs = {"hidden": "compares hidden states"}

    type: Literal["sibling-value"] = "sibling-value"
    metric: Annotated[Literal["euclid", "cosine"], OURS] = "euclid"
    """Distance of hidden states: as they are, or of their directions alone."""
    width: Annotated[Positive, OURS] = 0.25
    """Width of the kernel in medians of the distance between states of different responses."""


class SiblingContextCredit(SiblingCreditBase):
    """What a token added to the value of its response, valued by the siblings that wrote the same last tokens."""

    formula = f"{_SIBLING_FORMULA};  w_itj = max_s backoff^(ngram - m),  m the last tokens before t and s that are the same, 0 for m = 0"
    caveats = _SIBLING_CAVEATS

    type: Literal["sibling-context"] = "sibling-context"
    ngram: Annotated[Count, OURS] = 3
    """Number of preceding tokens that are compared; the prompt, which all siblings share, precedes the first token."""
    backoff: Annotated[Share, OURS] = 0.25
    """Weight of a match that is one token shorter; 0 counts full matches only."""

    @property
    def compares_siblings(self) -> str:
        return "compares the token ids of siblings"


class ForkingCredit(CreditBase):
    """80/20 forking tokens: credit for the tokens of highest entropy only."""

    formula = "a_it = A_i [t among the ceil(keep x N) tokens of highest entropy in the batch]"
    caveats = ("reading: ranked over the batch of rollouts, ties by position",)
    needs = {"entropy": "ranks the batch's tokens by entropy"}

    type: Literal["forking"] = "forking"
    keep: Annotated[PositiveShare, PAPER] = 0.2
    """Share of the batch's tokens that keep their credit."""
    divisor: Annotated[Literal["all", "kept"], Origin("general knowledge of the paper's formula")] = "all"
    """Losses are averaged over all tokens, or over the kept ones (coefficient N / kept)."""

    @property
    def averages_over_kept_tokens(self) -> bool:
        return self.divisor == "kept"


class KtaeCredit(CreditBase):
    """KTAE: add to the advantage how strongly a token's presence goes with success among the siblings."""

    formula = (
        "a_it = A_i + key(o_it),  key = 2 top (sigmoid((fisher_weight F + gain_weight IG) x / (fisher_weight + gain_weight)) - 1/2),  "
        "F = exp(-2 p) of Fisher's exact test, IG information gain in bits, x the direction of the association"
    )
    caveats = (
        "may credit tokens of a response whose advantage is 0; nothing in a group that is all right or all wrong",
        "the end token is left out",
    )
    needs_model = "leaves out the end token, which only the model's folder names"

    type: Literal["ktae"] = "ktae"
    fisher_weight: Annotated[NonNegative, CODE] = 1.0
    """Weight of the significance term."""
    gain_weight: Annotated[NonNegative, CODE] = 1.0
    """Weight of the information gain."""
    top: Annotated[Positive, CODE] = 1.0
    """Largest key value."""
    saturation: Annotated[NonNegative, CODE] = 2.0
    """BM25's k1: how soon a repeated token counts no more."""
    length_share: Annotated[Share, CODE] = 0.5
    """BM25's b: how much long sides are discounted."""
    correct_above: Annotated[Share, Origin("reading; public code: a reward above 0")] = 0.5
    """A score above this is a success."""

    @property
    def compares_siblings(self) -> str:
        return "compares the token ids of siblings"

    @model_validator(mode="after")
    def _weighted(self) -> "KtaeCredit":
        if self.fisher_weight + self.gain_weight == 0:
            raise ValueError("credit.fisher_weight and credit.gain_weight are both 0; one of them must be above 0")
        return self


class OneSidedCredit(CreditBase):
    """Only one side of the comparison is credited."""

    formula = "a_it = max(A_i, 0)  (side positive)  or  min(A_i, 0)  (side negative)"
    caveats = ("what right and wrong responses share no longer cancels",)
    differs_within_response = False
    sees_one_response = True

    type: Literal["one-sided"] = "one-sided"
    side: Annotated[Literal["positive", "negative"], OURS] = "positive"
    """Which responses keep their credit."""

    @property
    def needs_negative_side(self) -> str | None:
        return "has no negative side to work on" if self.side == "negative" else None


class EditMaskCredit(CreditBase):
    """IBPO's mask: a repaired failure is credited only where the repair edited it."""

    formula = "a_it = A_i [i was not repaired, or t changed under the Levenshtein alignment of i with its successful revision]"
    caveats = (
        "reading: applies to failures with a successful revision; among several, the revision with the fewest edits",
        "reading: an insertion marks the token right after it (the last token at the end)",
        "a revision identical to the failure leaves all tokens credited",
    )
    needs = REVISIONS

    type: Literal["edit-mask"] = "edit-mask"
    unchanged: Annotated[Share, Origin("reading: restricted to edited tokens")] = 0.0
    """Coefficient of tokens that the repair left alone."""


class ProcessCredit(CreditBase):
    """Monte-Carlo process credit: how much a step changed the chance of success, by continuing from its start and its end."""

    formula = "a_it = V(end of the step of t) - V(its start),  V by sampled continuations;  V(prompt) the group's mean, V(end) the reward"
    caveats = (
        "reading of VinePPO: continuations replace its value function; every token of a step receives the step's gain",
        "reads no advantage: a response's steps sum to its reward minus the group's mean",
        "continuations are counted in rollouts used",
    )
    sampling_fields = ("boundary", "every", "continuations", "budget")
    needs = {"prefix-values": "continues responses from the middle"}
    reads_score = "values prefixes by the verifier's score"
    sums_to = "dr-grpo"

    type: Literal["process"] = "process"
    boundary: Annotated[Literal["steps", "tokens"], Origin("general knowledge: VinePPO branches at reasoning steps")] = "steps"
    """Branch where the task marks the start of a step, or every few tokens."""
    every: Annotated[Count, OURS, OnlyWhen("boundary", ("tokens",))] = 8
    """Tokens between branchings when boundary is tokens."""
    continuations: Annotated[Count, Origin("reading: VinePPO's K was not re-read")] = 4
    """Sampled from each prefix."""
    budget: Annotated[Count | None, OURS] = None
    """Most continuations per batch; prefixes beyond it are left out at random and their steps merge."""
    dead_groups: Annotated[Literal["skip", "branch"], OURS] = "skip"
    """Groups whose rewards are all equal: skip gives no credit and samples no continuation; branch treats them like other groups."""

    @property
    def needs_step_marks(self) -> bool:
        return self.boundary == "steps"

    @model_validator(mode="after")
    def _affordable(self) -> "ProcessCredit":
        if self.budget is not None and self.budget < self.continuations:
            raise ValueError(
                f"credit.budget is {self.budget} but one prefix takes credit.continuations {self.continuations}; no prefix could be valued"
            )
        return self


CreditChoice = (
    UniformCredit
    | DeltaCredit
    | NtfCredit
    | ForkingCredit
    | KtaeCredit
    | OneSidedCredit
    | EditMaskCredit
    | ProcessCredit
    | NtfKeepCredit
    | SiblingValueCredit
    | SiblingContextCredit
)
