package display

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// leastWidth is the narrowest terminal that lines are made for; a narrower one cuts or wraps them itself.
const leastWidth = 40

func (s Style) columns() int { return max(s.Width, leastWidth) - 1 }

// usualWidth is the narrowest terminal that is left to wrap a page by itself.
const usualWidth = 80

// page is how wide text and tables may be: as a page is, but on a terminal so narrow that it would break every line.
func (s Style) page() int {
	if s.Whole || s.Width <= 0 || s.Width >= usualWidth {
		return tableWidth
	}
	return s.columns()
}

// ANSI codes (ECMA-48, SGR).
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func (s Style) paint(code, text string) string {
	if !s.Color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s Style) state(state predictor.RunState) string {
	switch state {
	case predictor.RunSucceeded:
		return s.paint(green, string(state))
	case predictor.RunFailed, predictor.RunCancelled:
		return s.paint(red, string(state))
	case predictor.RunRunning:
		return s.paint(yellow, string(state))
	default:
		return s.paint(yellow, "waiting to start")
	}
}

// bar is width columns of which done in total are full; a stage with work left is never shown full.
func (s Style) bar(done, total, width int) string {
	full := 0
	if total > 0 {
		full = min(done*width/total, width)
	}
	filled, empty := "█", "░"
	if s.ASCII {
		filled, empty = "#", "."
	}
	return s.paint(green, strings.Repeat(filled, full)) + s.paint(dim, strings.Repeat(empty, width-full))
}

// cut shortens text to width characters; what was cut shows as "~".
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(width-1, 0)]) + "~"
}

// cut is cut, but for what is to be whole.
func (s Style) cut(text string, width int) string {
	if s.Whole {
		return text
	}
	return cut(text, width)
}

// seconds writes a time with two to three digits: "0.084 s", "0.25 s", "12.3 s", "4m05s", "3h07m".
func seconds(value float64) string {
	switch {
	case math.IsNaN(value) || value < 0:
		return "-"
	case value < 0.0995:
		return strconv.FormatFloat(value, 'f', 3, 64) + " s"
	case value < 0.995:
		return strconv.FormatFloat(value, 'f', 2, 64) + " s"
	case value < 99.95:
		return strconv.FormatFloat(value, 'f', 1, 64) + " s"
	case value < 3600:
		whole := int(math.Round(value))
		return fmt.Sprintf("%dm%02ds", whole/60, whole%60)
	case value < 1e9:
		minutes := int(math.Round(value / 60))
		return fmt.Sprintf("%dh%02dm", minutes/60, minutes%60)
	default:
		return "-"
	}
}

// between writes an interval of times: "8.0 s (6.1 s to 11.2 s)".
func between(interval predictor.Interval, write func(float64) string) string {
	if interval.Low == interval.High {
		return write(interval.Mid)
	}
	return fmt.Sprintf("%s (%s to %s)", write(interval.Mid), write(interval.Low), write(interval.High))
}

// money writes an amount of US dollars as quantity.Money does.
func money(usd float64) string {
	amount, err := quantity.Dollars(usd)
	if err != nil {
		return "-"
	}
	return amount.String()
}

// spent writes what attempts cost, some of which may go on; "-" where nothing is known of those yet.
func spent(cost quantity.Money, goesOn bool) string {
	if cost == 0 && goesOn {
		return "-"
	}
	return cost.String()
}

// Count writes n things, each of which is one: "1 stage", "2 stages".
func Count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// goal writes a goal for people; "no goal" for none.
func goal(g predictor.Goal) string {
	var parts []string
	if g.Deadline > 0 {
		deadline := "deadline " + duration(g.Deadline)
		if g.Confidence > 0 {
			deadline += " with " + words.Percent(g.Confidence)
		}
		parts = append(parts, deadline)
	}
	if g.Budget > 0 {
		parts = append(parts, "budget "+g.Budget.String())
	}
	if g.Minimise != "" {
		parts = append(parts, "minimise "+string(g.Minimise))
	}
	if len(parts) == 0 {
		return "no goal"
	}
	return strings.Join(parts, ", ")
}

// duration writes 10m, not 10m0s.
func duration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// memoryAt writes peak and grant of a stage's memory at a venue; "-" where none of its attempts was.
func memoryAt(stage ledger.StageView, venue predictor.Venue) string {
	return megabytes(stage.Memory[venue].Peak, stage.Memory[venue].Grant)
}

// megabytes writes peak and grant of memory in one unit: "190/256 MiB".
func megabytes(peak, grant quantity.Bytes) string {
	if peak <= 0 && grant <= 0 {
		return "-"
	}
	unit, name := quantity.MiB, "MiB"
	if max(peak, grant) >= 10*quantity.GiB {
		unit, name = quantity.GiB, "GiB"
	}
	write := func(b quantity.Bytes) string {
		if b <= 0 {
			return "-"
		}
		return strconv.FormatInt(int64((b+unit-1)/unit), 10)
	}
	return write(peak) + "/" + write(grant) + " " + name
}

// OrDash is text, or a dash in its place when it is empty.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
