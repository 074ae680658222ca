package web_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// sized adds run r, of which a stage with the name of a script has ended ten attempts.
func sized(t *testing.T) *web.Server {
	t.Helper()
	engine := newEngine(t)
	engine.Apply("r", predictor.RunStarted{Run: "r", Pipeline: "digits", App: "digits", Build: "0123456789ab", At: begin})
	for i := range 10 {
		engine.Apply("r", predictor.Record{
			Run: "r", Stage: predictor.StageID{App: "digits", Build: "0123456789ab", Name: "<script>"}, Task: fmt.Sprint("t", i),
			Attempt: 1, Venue: predictor.Pool, Outcome: predictor.Succeeded, Grant: quantity.Size{Memory: quantity.GiB},
			Usage:    quantity.Usage{Wall: time.Duration(i+1) * time.Second, PeakMemory: quantity.Bytes(i+1) * quantity.MiB},
			Features: map[string]float64{"rows": float64(i)}, At: begin.Add(time.Duration(i+2) * time.Second),
			Predicted: predictor.Prediction{Wall: predictor.Interval{Low: 1, Mid: 2, High: 3.5}},
		})
	}
	return web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed})
}

func TestWhatWasPredictedIsToldBesideWhatCame(t *testing.T) {
	t.Parallel()
	server := sized(t)
	code, text := ask(t, server, "GET", "/api/v1/runs/r/sizes?points=5", "", nil)
	var answer struct{ Stages []hindsight.Stage }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || code != http.StatusOK || len(answer.Stages) != 1 {
		t.Fatalf("got %d %v %s", code, err, text)
	}
	wall := answer.Stages[0].Wall
	if wall.Feature != "rows" || wall.Attempts != 10 || wall.Predicted != 10 || wall.Within != 3 || len(wall.Points) != 5 {
		t.Errorf("got %+v, want 5 of 10 attempts over rows, of which 3 came within the band", wall)
	}
	for target, want := range map[string]int{
		"/api/v1/runs/r/sizes?stage=other": 404, "/api/v1/runs/none/sizes": 404, "/api/v1/runs/none/sizes?format=svg": 404,
		"/api/v1/runs/r/sizes?format=png": 400, "/api/v1/runs/r/sizes?width=9": 400, "/api/v1/runs/r/sizes?points=0": 400,
		"/api/v1/runs/r/sizes?revision=x": 400, "/api/v1/runs/r/sizes?wide=9": 400,
	} {
		if code, text := ask(t, server, "GET", target, "", nil); code != want {
			t.Errorf("%s: got %d %s, want %d", target, code, text, want)
		}
	}
}

func TestThePictureOfSizesCanDoNothing(t *testing.T) {
	t.Parallel()
	recorder := httptest.NewRecorder()
	sized(t).ServeHTTP(recorder, accesstest.Arrived(accesstest.Show(httptest.NewRequestWithContext(t.Context(), "GET",
		"/api/v1/runs/r/sizes?format=svg&width=700&revision=3&stage=%3Cscript%3E", nil)), 7474))
	header := recorder.Header()
	if header.Get("Content-Type") != "image/svg+xml" || header.Get("X-Content-Type-Options") != "nosniff" ||
		!strings.HasPrefix(header.Get("Content-Security-Policy"), "default-src 'none';") {
		t.Errorf("the picture comes with %v", header)
	}
	text := recorder.Body.String()
	if !strings.Contains(text, `width="700"`) || !strings.Contains(text, "&lt;script&gt;") ||
		strings.Contains(text, "<script") {
		t.Errorf("want a picture of the stage, 700 wide, without a script: %s", text)
	}
	if err := xml.Unmarshal([]byte(text), &struct{}{}); err != nil {
		t.Errorf("the picture is no XML: %v", err)
	}
}
