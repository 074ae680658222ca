package torch

import (
	"math"
	"os"
	"testing"
)

// keyed is Python that the snippets of this file share.
const keyed = `
F = nn.functional
BATCH = 6
CUTS = ([0, 6], [0, 2, 4, 6], [0, 1, 3, 6], [0, 1, 2, 3, 4, 5, 6])
def masks(make, cut, step=0, layer="drop", seed=1, axis=0, part=0):
    """What make(first, end) returns for each micro-batch of a cut, joined."""
    keyed = KeyedDropout(seed, part)
    found = []
    for first, end in zip(cut, cut[1:]):
        with keyed.micro_batch(step, first, end - first):
            keyed.operation(layer)
            found.append(make(first, end))
    return torch.cat(found, axis)
def bits(source, key, samples, elements):
    """The bits of a source as numbers from -1 to 1."""
    return source.draw(derived(key), 0, samples, elements, torch.device("cpu")).double() / 32768
`

func TestAMaskBelongsToItsSample(t *testing.T) {
	t.Parallel()
	runSnippets(t, []snippet{
		{
			"Any cut into micro-batches has the same masks.", keyed + `
def check(function, *shape, axis=0, **more):
    x = torch.rand(*shape) + 1
    whole, *others = [masks(lambda a, b:
        function(x.narrow(axis, a * (shape[axis] // BATCH), (b - a) * (shape[axis] // BATCH)).clone(), 0.5, True),
        cut, axis=axis) for cut in CUTS]
    return bool((whole == 0).any() or (whole < 0).any()) and all(torch.equal(whole, other) for other in others)
result = [check(F.dropout, BATCH, 5), check(F.dropout, BATCH, 4, 7), check(F.dropout, BATCH),
    check(F.dropout, 3 * BATCH, 4, 7), check(F.dropout, 7, BATCH, 9, axis=1),
          check(F.dropout1d, BATCH, 16, 7), check(F.dropout2d, BATCH, 16, 3, 3), check(F.dropout3d, BATCH, 16, 3, 3, 2),
          check(F.alpha_dropout, BATCH, 5),
          check(F.feature_alpha_dropout, BATCH, 16, 3), check(lambda *a: torch.dropout(*a), BATCH, 5),
          check(lambda *a: torch.feature_dropout(*a), BATCH, 16, 3),
          check(source("from torch import dropout\ndef twice(*a): return dropout(*a)").module.twice, BATCH, 5)]`,
			[]any{true, true, true, true, true, true, true, true, true, true, true, true, true},
		},
		{
			"Modules and the library's layers have them too, wherever they run.", keyed + `
class Direct(nn.Module):  # names bound before
    function = staticmethod(F.dropout)
    def forward(self, x):
        return Direct.function(torch.dropout(x, 0.5, self.training), 0.5, self.training)
def check(module, *shape, axis=0):
    torch.manual_seed(0)
    x = torch.randn(*shape)
    traced = fx.symbolic_trace(module) if not isinstance(module, (nn.TransformerEncoder, Direct)) else module
    plain, again = module(x), module(x)
    runs = [masks(lambda a, b: m(x.narrow(axis, a, b - a)), cut, axis=axis) for cut in CUTS for m in (module, traced)]
    return not torch.equal(plain, again) and all((runs[0] - run).abs().max().item() < 1e-5
        for run in runs) and (plain - runs[0]).abs().max().item() > 1e-3
layer = lambda first: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.3, batch_first=first), 2)
result = [check(nn.Sequential(nn.Linear(8, 32), nn.Dropout(), nn.ReLU(), nn.Dropout(inplace=True)), BATCH, 8),
    check(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout2d()), BATCH, 3, 6, 6),
          check(nn.Sequential(nn.Linear(8, 32), nn.SELU(), nn.AlphaDropout()), BATCH, 8),
          check(nn.Sequential(nn.Conv1d(3, 8, 3), nn.FeatureAlphaDropout()), BATCH, 3, 6),
          check(Direct(), BATCH, 32), check(layer(True), BATCH, 5, 16), check(layer(False), 5, BATCH, 16, axis=1)]`,
			[]any{true, true, true, true, true, true, true},
		},
		{
			"A mask is of its seed, step, layer, call and sample, and of no part.", keyed + `
x = torch.ones(BATCH, 64)
drop = lambda a, b: F.dropout(x[a:b])
twice = lambda a, b: torch.cat([F.dropout(x[a:b]), F.dropout(x[a:b])], 1)
one = masks(drop, CUTS[0])
different = [one, masks(drop, CUTS[0], step=1), masks(drop, CUTS[0], layer="other"), masks(drop, CUTS[0], seed=2),
    masks(twice, CUTS[0])[:, 64:], masks(twice, CUTS[0], layer="other")[:, 64:]]
rows = [tuple(row.tolist()) for mask in different for row in mask]
result = [len(set(rows)) == len(rows) == 36, torch.equal(one, masks(drop, CUTS[0])),
    torch.equal(one, masks(drop, CUTS[0], part=3)), torch.equal(one, masks(twice, CUTS[0])[:, :64])]`,
			[]any{true, true, true, true},
		},
		{"A recomputation repeats masks and other random numbers, which parts do not share.", keyed + `
draw = lambda a, b: torch.rand(b - a, 3)
one = masks(draw, CUTS[1])
torch.manual_seed(9)
result = [torch.equal(one, masks(draw, CUTS[1])), torch.equal(one, masks(draw, CUTS[1], part=1)),
    torch.equal(one, masks(draw, CUTS[1], step=1))]`, []any{true, false, false}},
		{
			"Outside, and after an error, PyTorch is as it was.", keyed + `
names = [n for n in dir(torch) if "dropout" in n]
before = [getattr(torch, n) for n in names] + [getattr(torch._VF, n) for n in names]
keyed = KeyedDropout(1)
try:
    with keyed.micro_batch(0, 0, 4):
        inside = torch.dropout is before[names.index("dropout")]
        F.dropout(torch.rand(4), 2.0)
except ValueError as error:
    said = str(error)
x = torch.ones(100)
torch.manual_seed(5)
one = F.dropout(x)
torch.manual_seed(5)
result = [inside, all(
    a is b for a, b in zip(before, [getattr(torch, n) for n in names] + [getattr(torch._VF, n) for n in names])),
    torch.equal(one, torch._C._VariableFunctions.dropout(x, 0.5, True)), said,
          [n for n in vars(torch._VF) if "dropout" in n]]`,
			[]any{false, true, true, "dropout probability has to be between 0 and 1, but got 2.0", []any{}},
		},
		{"Recurrent layers that draw within a kernel are refused.", keyed + `
def of(module, x):
    keyed = KeyedDropout(1)
    with keyed.micro_batch(0, 0, 2):
        module(x)
x = torch.rand(4, 2, 3)
packed = nn.utils.rnn.pack_padded_sequence(x, [4, 3])
result = [refusal(of, nn.LSTM(3, 3, num_layers=2, dropout=0.5), x),
    refusal(of, nn.RNN(3, 3, num_layers=3, dropout=0.5), packed)] + [
    of(m, v) for m in (nn.LSTM(3, 3, num_layers=2), nn.GRU(3, 3, num_layers=2, dropout=0.5).eval()) 
        for v in (x, packed)]`, []any{
			"dropout: lstm of 2 layers draws its dropout masks itself, and they depend on the split; use 2 of one layer each " +
				"with torch.nn.Dropout between them, or dropout=0",
			"dropout: rnn_tanh of 3 layers draws its dropout masks itself, and they depend on the split; use 3 of one layer " +
				"each with torch.nn.Dropout between them, or dropout=0",
			nil, nil, nil, nil,
		}},
	})
}

func TestKeyedDropoutComputesWhatPyTorchDoes(t *testing.T) {
	t.Parallel()
	runSnippets(t, []snippet{
		{
			"Kept and dropped elements have the same values.", keyed + `
def values(function, *shape, p=0.25):
    x = torch.full(shape, 3.0)
    own = masks(lambda a, b: function(x[a:b].clone(), p, True), CUTS[0])
    return [round(v, 4) for v in sorted(set(own.flatten().tolist()))] == [round(v, 4)
        for v in sorted(set(function(x.clone(), p, True).flatten().tolist()))]
inplace = lambda function: lambda x, p, train: function(x, p, train, inplace=True)
result = [values(f, BATCH, 64, 3, 3) for g in (F.dropout, F.alpha_dropout, F.dropout2d, F.feature_alpha_dropout)
    for f in (g, inplace(g))] + [
    values(F.dropout, BATCH, 64, p=1.0), values(F.dropout, BATCH, 64, p=0.0), 
    values(F.dropout, BATCH, 64, p=1e-9), values(F.alpha_dropout, BATCH, 64, p=0.0)]`,
			[]any{true, true, true, true, true, true, true, true, true, true, true, true},
		},
		{
			"Whole channels are dropped where PyTorch drops them.", keyed + `
x = torch.ones(BATCH, 64, 3, 3)
own = masks(lambda a, b: F.dropout2d(x[a:b]), CUTS[0]).flatten(2)
result = [bool((own == own[:, :, :1]).all()), bool((own[:, :, 0] == 0).any()), bool((own[:, :, 0] == 2).any())]`,
			[]any{true, true, true},
		},
		{
			"Without training nothing is dropped, and any shape and type will do.", keyed + `
x = torch.ones(BATCH, 8)
keyed = KeyedDropout(1)
with keyed.micro_batch(0, 0, BATCH):
    result = [F.dropout(x, training=False) is x, nn.Dropout().eval()(x) is x, list(F.dropout(torch.ones(0, 3)).shape),
        F.dropout(torch.ones(())).item() in (0.0, 2.0),
              list(F.dropout(torch.ones(7, 3)).shape), F.dropout(x.bfloat16()).dtype == torch.bfloat16,
              F.dropout(x.double()).dtype == torch.float64]`,
			[]any{true, true, []any{0., 3.}, true, []any{7., 3.}, true, true},
		},
		{
			"Gradients pass where elements were kept.", keyed + `
x = torch.randn(BATCH, 50, requires_grad=True)
y = masks(lambda a, b: F.dropout(x[a:b], 0.25), CUTS[2])
y.sum().backward()
result = [torch.allclose(x.grad * x, y), sorted(set((x.grad != 0).flatten().tolist()))]`,
			[]any{true, []any{false, true}},
		},
		{
			"Attention with dropout has the definition's result.", keyed + `
keyed = KeyedDropout(1)
torch.manual_seed(0)
q, k, v = torch.randn(BATCH, 4, 5, 8), torch.randn(BATCH, 2, 7, 8), torch.randn(BATCH, 2, 7, 3)
wide = lambda t: t.repeat_interleave(2, 1)
allowed = torch.rand(5, 7) > 0.3
allowed[:, 0] = True
def by_definition(mask, scale, bias=0.0):
    return torch.softmax((q @ wide(k).transpose(-2, -1) * scale + bias).masked_fill(~mask, -1e30), -1)
def dropped(weights):
    with keyed.micro_batch(0, 0, BATCH):
        return F.dropout(weights, 0.5) @ wide(v)
def own(**more):
    with keyed.micro_batch(0, 0, BATCH):
        return keyed.attention(q, k, v, dropout_p=0.5, enable_gqa=True, **more)
near = lambda a, b: torch.allclose(a, b, atol=1e-5)
every, triangle, usual = torch.ones(5, 7, dtype=torch.bool), torch.ones(5, 7, dtype=torch.bool).tril(), 8 ** -0.5
result = [near(own(), dropped(by_definition(every, usual))),
    near(own(is_causal=True), dropped(by_definition(triangle, usual))),
    near(own(attn_mask=allowed, scale=0.5), dropped(by_definition(allowed, 0.5))),
          near(own(attn_mask=torch.arange(7.0)), dropped(by_definition(every, usual, torch.arange(7.0))))]`,
			[]any{true, true, true, true},
		},
	})
}

// The bounds are multiples of the standard deviation that independent fair bits have; keys are fixed, so a pass is a
// pass for ever.
func TestMasksLookRandom(t *testing.T) {
	t.Parallel()
	run := interpreter(t)
	for _, source := range []string{"NumpyBits()", "HASHED"} {
		t.Run(source, func(t *testing.T) { //nolint:paralleltest // they share a process
			var got struct {
				Rates, Means, Variances, Samples, Steps, Layers, Lags, Lanes []float64
				Sequences                                                    float64
			}
			run(t, keyed+`
source = `+source+`
S, E = 64, 8192
def correlations(x):  # between the rows, in standard deviations
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    c = x @ x.t() / x.shape[1] ** 0.5
    return c[~torch.eye(len(c), dtype=torch.bool)].tolist()
x = bits(source, "key", S, E)
rates = []
for p in (0.1, 0.25, 0.5, 0.9, 0.001):
    keyed = KeyedDropout(3)
    keyed.bits = source
    with keyed.micro_batch(5, 0, S):
        kept = (nn.functional.dropout(torch.ones(S, E), p) > 0).double()
    rates.append((kept.mean().item() - (1 - p)) / (p * (1 - p) / kept.numel()) ** 0.5)
drop = lambda t: (t < -0.8).double()  # masks of p = 0.9
spectrum = torch.fft.rfft((drop(x) - drop(x).mean()).flatten()).abs() ** 2
lags = torch.fft.irfft(spectrum)
lags = lags[1:S * E // 2] / lags[0] * (S * E) ** 0.5
words = torch.stack([(x[:, i::8] > 0)[:, :E // 8].int() << i for i in range(8)]).sum(0)
counts = torch.bincount(words.flatten(), minlength=256).double()
expected = words.numel() / 256
result = {
    "rates": rates, "means": (x.mean(1) * (3 * E) ** 0.5).tolist(),
    "variances": ((x.var(1) * 3 - 1) * (5 * E / 4) ** 0.5).tolist(),
    "samples": correlations(x) + correlations(drop(x)),
    "steps": correlations(torch.stack([bits(source, ["step number", i], 1, E)[0] for i in range(64)])),
    "layers": correlations(torch.stack([bits(source, ["layer", str(i)], 8, E)[i % 8] for i in range(64)])),
    "lags": [lags.max().item(), lags.min().item()],
    "lanes": (x.view(S, -1, 4).mean((0, 1)) * (3 * S * E / 4) ** 0.5).tolist(),
    "sequences": ((counts - expected) ** 2 / expected).sum().item(),
}`, &got)
			for _, tt := range []struct {
				name  string
				found []float64
				bound float64
			}{
				{"the rates of what is kept", got.Rates, 4},
				{"the means of samples", got.Means, 4.5},
				{"the variances of samples", got.Variances, 4.5},
				{"the correlations of samples", got.Samples, 5.5},
				{"those of steps", got.Steps, 5.5},
				{"those of layers", got.Layers, 5.5},
				{"those of elements so far apart", got.Lags, 6},
				{"the means of every fourth element", got.Lanes, 4},
				{
					"the counts of sequences of 8 bits, as a deviation of chi squared",
					[]float64{(got.Sequences - 255) / math.Sqrt(2*255)},
					4,
				},
			} {
				worst := 0.0
				for _, v := range tt.found {
					if math.IsNaN(v) || math.Abs(v) > math.Abs(worst) {
						worst = v
					}
				}
				if len(tt.found) == 0 || worst == 0 || math.IsNaN(worst) || math.Abs(worst) > tt.bound {
					t.Errorf("%s: %.2f standard deviations from what independent bits have in %d values, want at most %g", tt.name,
						worst, len(tt.found), tt.bound)
				}
				t.Logf("%s: %.2f of %g", tt.name, worst, tt.bound)
			}
		})
	}
}

// A source draws a sample's bits whatever comes before it.
func TestBitsOfASampleDoNotDependOnItsNeighbours(t *testing.T) {
	t.Parallel()
	runSnippets(t, []snippet{
		{
			"One at a time they are the same.", keyed + `
def check(source, elements):
    key, device = derived("key"), torch.device("cpu")
    whole = source.draw(key, 0, 9, elements, device)
    return list(whole.shape) == [9, elements] and all(torch.equal(whole[i:j],
        source.draw(key, i, j - i, elements, device)) for i in range(9) for j in (i + 1, 9))
result = [check(s, n) for s in (NumpyBits(), HASHED) for n in (1, 2, 3, 4, 5, 64, 1023)]`,
			[]any{true, true, true, true, true, true, true, true, true, true, true, true, true, true},
		},
	})
}

// TestTheCostOfKeyedDropout measures; it decides nothing.
func TestTheCostOfKeyedDropout(t *testing.T) {
	t.Parallel()
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("a measurement; set SPILLWAY_MEASURE=1")
	}
	run := interpreter(t)
	var got []struct {
		Shape                      []int
		Threads                    int
		Bare, Keyed, Hashed, Enter float64
	}
	run(t, keyed+`
import time
def median(function, repeats=15):
    times = []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return sorted(times[3:])[repeats // 2] * 1e6
result = []
for threads in (1, 2):
    torch.set_num_threads(threads)
    for shape in ((64, 1024), (64, 128, 256)):
        x, ones, layer = torch.randn(shape, requires_grad=True), torch.ones(shape), nn.Dropout(0.1)
        train = lambda: layer(x).backward(ones)
        row = {"shape": shape, "threads": threads, "bare": median(train)}
        for name, source in (("keyed", NumpyBits()), ("hashed", HASHED)):
            keyed = KeyedDropout(1)
            keyed.bits = source
            with keyed.micro_batch(0, 0, 64):
                row[name] = median(train)
        def enter():
            with keyed.micro_batch(0, 0, 64):
                pass
        row["enter"] = median(enter)
        result.append(row)
`, &got)
	for _, m := range got {
		t.Logf("%v, %d threads: forward and backward %.0f us with PyTorch's masks, %.0f us with keyed ones, %.0f us with "+
			"hashed ones; %.0f us to enter a micro-batch", m.Shape, m.Threads, m.Bare, m.Keyed, m.Hashed, m.Enter)
	}
}
