package usage

import (
	"cmp"
	"hash/fnv"
	"math"
	"slices"
	"strings"
)

// Limits of categories.
const (
	// MaxCategories is how many categories a History follows, besides its numbers.
	MaxCategories = 4
	maxNames      = MaxFeatures + MaxCategories
	// MaxLevels is how many values of a category have a level of their own: of MaxAttempts, as many again for each.
	MaxLevels = 8
	// categorySuffix ends the names of features whose values are no numbers. What reads only numbers follows them as one
	// that explains nothing.
	categorySuffix = "="
)

// CategoryName is the name of the feature that tells the value of a category.
func CategoryName(name string) string { return name + categorySuffix }

// IsCategory reports whether the values of the named feature are kinds, which have no order.
func IsCategory(name string) bool { return strings.HasSuffix(name, categorySuffix) }

// Category is the value of a category by its text, from 1 to 2^32, the same on every machine. The texts are users' own:
// equal ones are told from others, and nothing else of them is kept.
func Category(text string) float64 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(text)) // never fails
	return 1 + float64(hash.Sum32())
}

// Levels is by what factor attempts take more or less than others for their value of a category. The zero value is 1
// for all. Levels are equal where they say the same; they travel in plans.
type Levels struct {
	// Name is that of the category; empty for none.
	Name string `json:"name,omitempty"`
	// Values are those with a level of their own, 0 for the rest of places, and Factors their levels.
	Values  [MaxLevels]float64 `json:"values,omitzero"`
	Factors [MaxLevels]float64 `json:"factors,omitzero"`
	// Other is the level of all other values, such as one that nobody has seen.
	Other float64 `json:"other,omitempty"`
}

// At is the factor for an attempt with these features: above 0, and 1 where nothing is known of its category.
func (l Levels) At(features Features) float64 {
	if l.Name == "" {
		return 1
	}
	return l.of(features.Value(l.Name))
}

func (l Levels) of(value float64) float64 {
	factor := l.Other
	for i, known := range l.Values {
		if known == value && l.Factors[i] > 0 {
			factor = l.Factors[i]
			break
		}
	}
	if !(factor > 0) || math.IsInf(factor, 0) {
		return 1
	}
	return factor
}

// largest is the largest factor.
func (l Levels) largest() float64 { return max(slices.Max(l.Factors[:]), l.Other) }

// divided are the levels with each factor divided.
func (l Levels) divided(by float64) Levels {
	for i := range l.Factors {
		l.Factors[i] /= by
	}
	l.Other /= by
	return l
}

// unseen is the level at which the limits of values that nobody has seen cost the least, where the next value takes
// what one of those took that are known, and Other at least.
func (l Levels) unseen(excess float64) float64 {
	known := slices.DeleteFunc(append([]float64{l.Other}, l.Factors[:]...), func(f float64) bool { return !(f > 0) })
	best, least := l.Other, math.Inf(1)
	for _, given := range known {
		total := 0.0
		for _, need := range known {
			total += cost(given/need, excess)
		}
		if given >= l.Other && total < least {
			best, least = given, total
		}
	}
	return best
}

// kinds are attempts by their values of a category. Values that came once are of one kind, the last.
type kinds struct {
	name   string
	values []float64 // of all kinds but the last
	of     []int     // the kind of each attempt
}

// kindsOf tells the kinds of attempts by their values; ok is false where there are not two, or no value came twice.
func kindsOf(name string, column []float64) (found kinds, ok bool) {
	counts := make(map[float64]int, MaxLevels)
	for _, value := range column {
		counts[value]++
	}
	for value, count := range counts {
		if count > 1 {
			found.values = append(found.values, value)
		}
	}
	slices.SortFunc(found.values, func(a, b float64) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	found.values = found.values[:min(MaxLevels, len(found.values))]
	found.name, found.of = name, make([]int, len(column))
	for i, value := range column {
		if found.of[i] = slices.Index(found.values, value); found.of[i] < 0 {
			found.of[i] = len(found.values)
		}
	}
	return found, len(found.values) > 0 && len(counts) > 1
}

// pool is by how much the logarithms of attempts of each kind lie above all, and for each attempt the same by the
// others of its kind alone. The mean of a kind is shrunk to that of all by n / (n + k), where n is the weight of its
// attempts and k the variance within kinds relative to that between them: what one attempt says of its kind is believed
// as far as kinds differ by more than attempts do (the best linear unbiased prediction: Robinson, That BLUP is a good
// thing, 1991, https://doi.org/10.1214/ss/1177011926; variances by the moments of the analysis of variance). ok is
// false where kinds differ by no more than attempts.
func (k kinds) pool(logs, weights []float64) (levels, without []float64, ok bool) {
	count := 1 + len(k.values)
	sums, weight := make([]float64, count), make([]float64, count)
	sum, all, some := 0.0, 0.0, 0.0
	for i, log := range logs {
		w := weights[i]
		sums[k.of[i]], weight[k.of[i]] = sums[k.of[i]]+w*log, weight[k.of[i]]+w
		sum, all = sum+w*log, all+w
	}
	mean, within, between, squares := sum/all, 0.0, 0.0, 0.0
	for i, log := range logs {
		if !(weights[i] > 0) {
			continue
		}
		away := log - sums[k.of[i]]/weight[k.of[i]]
		within += weights[i] * away * away
	}
	for one, w := range weight {
		if w > 0 {
			away := sums[one]/w - mean
			between, squares, some = between+w*away*away, squares+w*w, some+1
		}
	}
	if all <= some || some < 2 {
		return nil, nil, false
	}
	within /= all - some
	between = (between - (some-1)*within) / (all - squares/all)
	if !(between > 0) {
		return nil, nil, false
	}
	shrunk := func(sum, weight float64) float64 {
		if !(weight > rounding) {
			return 0
		}
		return weight / (weight + within/between) * (sum/weight - mean)
	}
	levels, without = make([]float64, count), make([]float64, len(logs))
	for one := range levels {
		levels[one] = shrunk(sums[one], weight[one])
	}
	for i, log := range logs {
		one, w := k.of[i], weights[i]
		without[i] = shrunk(sums[one]-w*log, weight[one]-w)
	}
	return levels, without, true
}

// levels are those with these logarithms.
func (k kinds) levels(logs []float64) Levels {
	found := Levels{Name: k.name, Other: math.Exp(logs[len(k.values)])}
	copy(found.Values[:], k.values)
	for i := range k.values {
		found.Factors[i] = math.Exp(logs[i])
	}
	return found
}
