package spill

import (
	"bytes"
	"compress/gzip"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spillway-ml/spillway/cmd/internal/series"
)

func written(t *testing.T, name, text string, zipped bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	content := []byte(text)
	if zipped {
		var buffer bytes.Buffer
		writer := gzip.NewWriter(&buffer)
		if _, err := writer.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := writer.Close(); err != nil {
			t.Fatal(err)
		}
		content = buffer.Bytes()
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSecondsAreAddedToFullMinutes(t *testing.T) {
	t.Parallel()
	path := written(t, "rps.txt.gz", strings.Repeat("2\n", 60)+strings.Repeat("0\n", 60)+"7\n", true)
	got, err := Seconds(path, 60)
	if diff := cmp.Diff([]float64{7200, 0}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for name, path := range map[string]string{
		"a word": written(t, "rps.txt.gz", "1\nmany\n", true), "no gzip": written(t, "rps.txt.gz", "1\n", false),
		"a negative count": written(t, "rps.txt.gz", "-1\n", true),
	} {
		if _, err := Seconds(path, 1); !errors.Is(err, series.ErrFormat) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestStampsAreCountedByFullMinutes(t *testing.T) {
	t.Parallel()
	const head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	path := written(t, "a.csv", head+"2023-11-16 18:15:46.6805900,1,2\n2023-11-16 18:16:46.6,1,2\n"+
		"2023-11-16 18:18:50.0,1,2\n2023-11-16 18:20:00.0,1,2\n", false)
	got, err := Stamps(path, 10)
	if diff := cmp.Diff([]float64{20, 0, 0, 10}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for name, text := range map[string]string{
		"no row": head, "no time": head + "today,1,2\n", "a time before the last": head +
			"2023-11-16 18:16:46.6,1,2\n2023-11-16 18:15:46.6,1,2\n", "a row that is too short": head + "2023\n",
	} {
		if _, err := Stamps(written(t, "a.csv", text, false), 1); !errors.Is(err, series.ErrFormat) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestAForecastIsWhatWasSeen(t *testing.T) {
	t.Parallel()
	forecaster := NewEmpirical(3)
	if first := forecaster.Forecast(3); len(first.Steps) != 3 || first.Steps[2][10] != 0 {
		t.Errorf("before anything came: %v", first)
	}
	random := rand.New(rand.NewPCG(1, 5))
	within, of := 0, 0
	for i := range 3000 {
		load := 900 + 200*random.Float64()
		if i > 1500 {
			quantiles := forecaster.Forecast(1).Steps[0]
			of++
			if load >= quantiles[2] && load <= quantiles[18] {
				within++
			}
		}
		forecaster.Observe(load)
	}
	if part := float64(within) / float64(of); part < 0.77 || part > 0.83 {
		t.Errorf("%v of the loads are within the middle 80 percent of their forecasts", part)
	}
}
