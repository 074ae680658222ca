package web

import (
	"math"
	"net/http"

	"github.com/spillway-ml/spillway/cmd/internal/sizespicture"
	"github.com/spillway-ml/spillway/predictor/hindsight"
)

// The parameters of GET /api/v1/runs/{run}/sizes.
var (
	comparedParameter = whole("points", "the most attempts of a stage to answer; of more, evenly many from everywhere",
		1, 10_000, 2000)
	drawnParameter = choice("format", "how it is told: as numbers, or as a picture", "json", "svg").or("json")
	widthParameter = whole("width", "how wide the picture is, in pixels", sizespicture.LeastWidth,
		sizespicture.MostWidth, sizespicture.UsualWidth)
	revisionParameter = whole("revision", "says nothing to the engine: another number is another address, so that a "+
		"browser asks for a picture again", 0, math.MaxInt32, 0)
)

// picturePolicy is that of a picture that is opened by itself: what it has within it, and nothing else.
const picturePolicy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"

type sizesAnswer struct {
	Stages []hindsight.Stage `json:"stages"`
}

// sizes answers GET /api/v1/runs/{run}/sizes?stage=&points=&format=&width=&revision=.
func (s *Server) sizes(w http.ResponseWriter, r *http.Request) {
	run := r.PathValue("run")
	stages, format, width, err := s.compared(r, run)
	switch {
	case err != nil:
		s.refuse(w, r, err)
	case format == "svg":
		header := w.Header()
		header.Set("Content-Type", "image/svg+xml")
		header.Set("Content-Security-Policy", picturePolicy)
		header.Set("Cache-Control", "no-store")
		if _, err := w.Write(sizespicture.Draw(run, stages, width)); err != nil && r.Context().Err() == nil {
			s.logger.DebugContext(r.Context(), "picture not answered to its end", "error", err)
		}
	default:
		s.write(w, r, http.StatusOK, sizesAnswer{notNil(stages)})
	}
}

// compared reads what is asked for, and asks the engine for it.
func (s *Server) compared(r *http.Request, run string) (stages []hindsight.Stage, format string, width int, err error) {
	if format, err = drawnParameter.text(r); err != nil {
		return nil, "", 0, err
	}
	numbers := map[string]int64{}
	for _, p := range []parameter{comparedParameter, widthParameter, revisionParameter} {
		if numbers[p.name], err = p.number(r); err != nil {
			return nil, "", 0, err
		}
	}
	stage := r.FormValue("stage")
	view, err := s.knownRun(r.Context(), run)
	if err == nil && stage != "" {
		err = s.knownStage(r.Context(), view, stage)
	}
	if err != nil {
		return nil, "", 0, err
	}
	stages, err = s.engine.Hindsight(r.Context(), run, stage, int(numbers[comparedParameter.name]))
	return stages, format, int(numbers[widthParameter.name]), err
}
