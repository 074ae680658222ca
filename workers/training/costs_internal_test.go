package training

import (
	"testing"
	"time"
)

// TestWhatACheckpointCostsIsForHowLongItHoldsTheTrainingUp has steps of a second. Beside a checkpoint in the making
// they take as long as the row says.
func TestWhatACheckpointCostsIsForHowLongItHoldsTheTrainingUp(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, test := range []struct {
		name         string
		copying, all time.Duration
		beside       []time.Duration
		want         time.Duration
	}{
		{"written by processors that nobody needs", s / 2, 4 * s, []time.Duration{s, s, s}, s / 2},
		{"it slows three steps down", s / 2, 6 * s, []time.Duration{2 * s, 2 * s, s * 3 / 2}, 3 * s},
		{"steps that are shorter by chance", s / 2, 4 * s, []time.Duration{s - s/4, s, s - s/8}, s / 2},
		{"a step that waits for something else", s / 2, 2 * s, []time.Duration{9 * s}, 2 * s},
		{"nothing that can be measured", 0, 0, nil, 1},
	} {
		var c costs
		for range 20 {
			c.stepped(s, false)
		}
		for _, step := range test.beside {
			c.stepped(step, true)
		}
		if c.saved(test.copying, test.all); c.each != test.want {
			t.Errorf("%s: it costs %s, want %s", test.name, c.each, test.want)
		}
		before := c.each
		if c.saved(test.copying, test.all); c.each != max((before+test.copying)/2, 1) {
			t.Errorf("%s: with one that slows nothing down, %s, want half-way to %s", test.name, c.each, test.copying)
		}
	}
	var c costs
	c.stepped(9*s, true) // nothing is known of how long steps are
	if c.saved(s, 2*s); c.each != s {
		t.Errorf("where no usual step was seen it costs %s, want %s", c.each, s)
	}
}
