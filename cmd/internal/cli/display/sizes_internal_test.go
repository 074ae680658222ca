package display

import (
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/sizespicture"
)

func TestAnExtentHasOneUnit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		write       func(float64) string
		least, most float64
		want        string
	}{
		{sizespicture.Seconds, 0.0974, 0.13, "0.097–0.13 s"},
		{sizespicture.Seconds, 0.00267, 0.0357, "2.67–35.7 ms"},
		{sizespicture.Seconds, 0.11, 0.15, "0.11–0.15 s"},
		{sizespicture.Seconds, 0.5, 0.5, "0.5 s"},
		{sizespicture.Bytes, 98 << 20, 110 << 20, "98–110 MiB"},
		{sizespicture.Bytes, 512 << 10, 2 << 20, "512 KiB–2 MiB"},
	} {
		if got := extent(c.write, c.least, c.most); got != c.want {
			t.Errorf("from %g to %g: got %q, want %q", c.least, c.most, got, c.want)
		}
	}
}
