package display

import (
	"fmt"
	"strings"

	"github.com/spillway-ml/spillway/predictor"
)

// Capacity says how much of the pool what is forecast would be worth, beside functions; nothing where nobody knows.
func Capacity(c *predictor.Capacity, s Style) []string {
	if c == nil {
		return nil
	}
	lines := append([]string{"", s.paint(bold, "the pool")}, wrapped("  ", Clean(c.Summary), s.page())...)
	lines = append(lines, wrapped("  ", Clean(c.Reason), s.page())...)
	t := newTable("held", ">a day", ">10% to 90%", "")
	add := func(held int, day predictor.Daily, what string) {
		between := fmt.Sprintf("$%.2f to $%.2f", day.Low, day.High)
		t.add(Count(held, "core"), fmt.Sprintf("$%.2f", day.Mean), between, what)
	}
	add(c.Held, c.Day, "advised")
	add(c.Now, c.DayNow, "now")
	for _, other := range c.Others {
		add(other.Held, other.Day, other.What)
	}
	lines = append(lines, t.lines(s, "    ")...)
	return append(lines, wrapped("  ", fmt.Sprintf("for %s in the next %s, of all runs, if a day went on like that: "+
		"advice, nothing launches hosts; a core costs %s an hour with its host; decided each minute anew, it would cost at "+
		"most %.1f times what hindsight pays, however wrong the forecast", strings.Join(c.Stages, ", "),
		Count(c.Minutes, "minute"),
		c.PerHour.Times(1/c.Host.CPU.Cores()), c.Bound), s.page())...)
}
