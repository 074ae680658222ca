package curve

import (
	"slices"
	"strings"
	"unicode"
)

// kinds are the words by which a metric's name says which way is better, those that tell most of a training first. A
// word counts as a whole: "loss" is in "val_loss" and "valLoss", and in "lossless" it is not.
var kinds = []struct {
	words     []string
	direction Direction
}{
	{[]string{"loss", "nll", "perplexity", "ppl"}, Minimise},
	{[]string{"error", "err", "mse", "rmse", "mae", "mape", "wer", "cer"}, Minimise},
	{[]string{
		"accuracy", "acc", "auc", "auroc", "f1", "bleu", "rouge", "iou", "miou", "dice", "map", "ssim", "psnr",
		"precision", "recall", "r2", "reward", "top1", "top5",
	}, Maximise},
}

// held are the words for data that a training does not learn from.
var held = []string{"val", "valid", "validation", "eval", "dev", "test"}

// DirectionOf is which values of a metric are better by its name, as losses and errors are minimised and accuracies
// maximised; not known for a name that says neither, as "done" or "learning_rate".
func DirectionOf(metric string) (direction Direction, known bool) {
	of := words(metric)
	for _, kind := range kinds {
		if slices.ContainsFunc(of, func(word string) bool { return slices.Contains(kind.words, word) }) {
			return kind.direction, true
		}
	}
	return 0, false
}

// Metric is the one of these metrics by which a training is followed: losses before errors and those before
// accuracies; of each, on data that is held out before others; then the shorter name, and the first of the alphabet.
// Empty where no name says which way is better: then nothing says what getting better is.
func Metric(names []string) string {
	type rank struct{ kind, seen, length int }
	chosen, least := "", rank{}
	for _, name := range names {
		of := words(name)
		for k, kind := range kinds {
			if !slices.ContainsFunc(of, func(word string) bool { return slices.Contains(kind.words, word) }) {
				continue
			}
			r := rank{k, 1, len(name)}
			if slices.ContainsFunc(of, func(word string) bool { return slices.Contains(held, word) }) {
				r.seen = 0
			}
			before := r.kind < least.kind || r.kind == least.kind && (r.seen < least.seen ||
				r.seen == least.seen && (r.length < least.length || r.length == least.length && name < chosen))
			if chosen == "" || before {
				chosen, least = name, r
			}
			break
		}
	}
	return chosen
}

// words splits a name into its words in lower case: "val/topOne_acc" is val, top, one, acc.
func words(name string) []string {
	var spaced strings.Builder
	lower := false
	for _, r := range name {
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			spaced.WriteByte(' ')
		case unicode.IsUpper(r) && lower:
			spaced.WriteByte(' ')
			spaced.WriteRune(unicode.ToLower(r))
		default:
			spaced.WriteRune(unicode.ToLower(r))
		}
		lower = unicode.IsLower(r)
	}
	return strings.Fields(spaced.String())
}
