package words

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Count writes "1 slot", "2 slots".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Grouped writes a whole number with a comma between thousands: "1,200".
func Grouped[Number ~int | ~int64 | ~uint64](n Number) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// PerSecond writes how much is done in a second, by what: "128 samples/s, 4,096 tokens/s", with three digits or as a
// whole number. Empty where nothing is.
func PerSecond(counts map[string]float64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		number := strconv.FormatFloat(counts[name], 'g', 3, 64)
		if whole := math.Round(counts[name]); whole >= 100 && whole < 1<<53 {
			number = Grouped(int64(whole))
		}
		parts = append(parts, number+" "+strings.ReplaceAll(name, "_", " ")+"/s")
	}
	return strings.Join(parts, ", ")
}

// Waiting writes "1 task waits", "3 tasks wait".
func Waiting(n int) string {
	switch n {
	case 0:
		return "no task waits"
	case 1:
		return "1 task waits"
	default:
		return strconv.Itoa(n) + " tasks wait"
	}
}

// RunningNow writes "1 runs", "3 run".
func RunningNow(n int) string {
	switch n {
	case 0:
		return "none runs"
	case 1:
		return "1 runs"
	default:
		return strconv.Itoa(n) + " run"
	}
}

// Seconds writes a duration with the digits that matter: "0.12 s", "4.5 s", "24 s", "3m20s".
func Seconds(s float64) string {
	switch {
	case math.IsInf(s, 0) || math.IsNaN(s):
		return "for ever"
	case s >= 120:
		return time.Duration(min(s, 1e9) * float64(time.Second)).Round(time.Second).String()
	case s >= 9.95:
		return strconv.FormatFloat(s, 'f', 0, 64) + " s"
	case s >= 0.0995:
		return trimmed(s, 1+digitsBelow(s)) + " s"
	default:
		return trimmed(s, 3) + " s"
	}
}

// Percent writes a part of 1 with the digits that matter: "7 %", "93 %", "99.9 %".
func Percent(part float64) string {
	digits := 0
	if part > 0.99 && part < 1 || part > 0 && part < 0.01 {
		digits = 1
	}
	return trimmed(100*part, digits) + " %"
}

func digitsBelow(s float64) int {
	if s >= 1 {
		return 0
	}
	return 1
}

func trimmed(s float64, digits int) string {
	text := strconv.FormatFloat(s, 'f', digits, 64)
	for digits > 0 && text[len(text)-1] == '0' {
		text, digits = text[:len(text)-1], digits-1
	}
	if text[len(text)-1] == '.' {
		text = text[:len(text)-1]
	}
	return text
}

// TimeAbove rounds seconds up to a time that people would give.
func TimeAbove(seconds float64) float64 {
	step := 1.0
	switch {
	case seconds >= 3600:
		step = 300
	case seconds >= 600:
		step = 30
	case seconds >= 60:
		step = 5
	}
	return math.Ceil(seconds/step) * step
}

// AmountAbove rounds an amount up to two digits; 0 where it is not above 0.
func AmountAbove(amount float64) float64 {
	if !(amount > 0) {
		return 0
	}
	step := math.Pow(10, math.Floor(math.Log10(amount))-1)
	return math.Ceil(amount/step-1e-9) * step
}
