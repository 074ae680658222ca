package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/timeline"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Timeline lays out the attempts of a run in at most about marks marks; 0 means the engine's default.
func (c *Client) Timeline(ctx context.Context, run string, marks int) (view timeline.View, err error) {
	values := url.Values{}
	setNumber(values, "marks", marks)
	return view, c.call(ctx, http.MethodGet, ofRun(run, "timeline", values), nil, &view)
}

// Attempts returns attempts of a run by when they were scheduled. A Limit of 0 means the engine's default.
func (c *Client) Attempts(ctx context.Context, query web.AttemptQuery) ([]timeline.Attempt, error) {
	values := url.Values{}
	set(values, "stage", query.Stage)
	set(values, "outcome", query.Outcome)
	setNumber(values, "offset", query.Offset)
	setNumber(values, "limit", query.Limit)
	var answer struct{ Attempts []timeline.Attempt }
	err := c.call(ctx, http.MethodGet, ofRun(query.Run, "attempts", values), nil, &answer)
	return answer.Attempts, err
}

// Allocation returns what each stage of a run held and used, at about so many points in time; 0 means the engine's
// default.
func (c *Client) Allocation(ctx context.Context, run string, points int) ([]timeline.Allocation, error) {
	values := url.Values{}
	setNumber(values, "points", points)
	var answer struct{ Stages []timeline.Allocation }
	err := c.call(ctx, http.MethodGet, ofRun(run, "allocation", values), nil, &answer)
	return answer.Stages, err
}

// Breakdown returns where the time of a run went.
func (c *Client) Breakdown(ctx context.Context, run string) (breakdown timeline.Breakdown, err error) {
	return breakdown, c.call(ctx, http.MethodGet, ofRun(run, "breakdown", nil), nil, &breakdown)
}

// Curves returns what the tasks of a run reported as progress.
func (c *Client) Curves(ctx context.Context, run string) ([]timeline.Curve, error) {
	var answer struct{ Curves []timeline.Curve }
	err := c.call(ctx, http.MethodGet, ofRun(run, "curves", nil), nil, &answer)
	return answer.Curves, err
}

// Hindsight sets what was predicted of the attempts of a run beside what came, with at most so many points of each
// stage; 0 means the engine's default.
func (c *Client) Hindsight(ctx context.Context, run string, points int) ([]hindsight.Stage, error) {
	values := url.Values{}
	setNumber(values, "points", points)
	var answer struct{ Stages []hindsight.Stage }
	err := c.call(ctx, http.MethodGet, ofRun(run, "sizes", values), nil, &answer)
	return answer.Stages, err
}

// Arrivals says what comes at the stages of a run, of all runs, minute by minute, and what is forecast; pool is how
// much of it would be held for that, nil where nobody knows.
func (c *Client) Arrivals(
	ctx context.Context, run string,
) (stages []predictor.Arriving, pool *predictor.Capacity, err error) {
	var answer struct {
		Stages []predictor.Arriving
		Pool   *predictor.Capacity
	}
	err = c.call(ctx, http.MethodGet, ofRun(run, "arrivals", nil), nil, &answer)
	return answer.Stages, answer.Pool, err
}

// Measured returns what the attempts of a stage have shown, named "stage" or "app/stage".
func (c *Client) Measured(ctx context.Context, stage string) (measured predictor.Measured, err error) {
	path := "/api/v1/stages/measured?" + url.Values{"stage": {stage}}.Encode()
	err = c.call(ctx, http.MethodGet, path, nil, &measured)
	return measured, err
}

// SizesPicture returns the same as a picture, as SVG.
func (c *Client) SizesPicture(ctx context.Context, run string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	response, err := c.send(ctx, http.MethodGet, ofRun(run, "sizes", url.Values{"format": {"svg"}}), nil)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return text, nil
}

// Trainings returns how the split trainings of a run go, or went, beside their plans.
func (c *Client) Trainings(ctx context.Context, run string) ([]ledger.TrainingView, error) {
	var answer struct{ Trainings []ledger.TrainingView }
	err := c.call(ctx, http.MethodGet, ofRun(run, "trainings", nil), nil, &answer)
	return answer.Trainings, err
}

// Tunings returns how the tunings of a run stand, or how they have ended.
func (c *Client) Tunings(ctx context.Context, run string) ([]runs.Tuning, error) {
	var answer struct{ Tunings []runs.Tuning }
	err := c.call(ctx, http.MethodGet, ofRun(run, "tuning", nil), nil, &answer)
	return answer.Tunings, err
}

// Diff compares two runs.
func (c *Client) Diff(ctx context.Context, a, b string) (diff ledger.Diff, err error) {
	return diff, c.call(ctx, http.MethodGet, "/api/v1/diff?"+url.Values{"a": {a}, "b": {b}}.Encode(), nil, &diff)
}

// Cost returns who spent what.
func (c *Client) Cost(ctx context.Context, query ledger.BillQuery) (bill ledger.Bill, err error) {
	return bill, c.call(ctx, http.MethodGet, "/api/v1/cost?"+costValues(query).Encode(), nil, &bill)
}

// CostCSV writes the bill to w as comma-separated values with a line of names, as the engine formats it. After an error
// part of it may be written.
func (c *Client) CostCSV(ctx context.Context, query ledger.BillQuery, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	values := costValues(query)
	values.Set("format", "csv")
	response, err := c.send(ctx, http.MethodGet, "/api/v1/cost?"+values.Encode(), nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return fmt.Errorf("copy the bill: %w", err)
	}
	return nil
}

// Prices returns the catalogue of prices in force.
func (c *Client) Prices(ctx context.Context) ([]pricing.Row, error) {
	var answer struct{ Prices []web.Price }
	if err := c.call(ctx, http.MethodGet, "/api/v1/prices", nil, &answer); err != nil {
		return nil, err
	}
	rows := make([]pricing.Row, len(answer.Prices))
	for i, price := range answer.Prices {
		rows[i] = price.Row()
	}
	return rows, nil
}

// Alerts returns the latest alerts, newest first. A limit of 0 means the engine's default.
func (c *Client) Alerts(ctx context.Context, limit int) ([]alerting.Alert, error) {
	values := url.Values{}
	setNumber(values, "limit", limit)
	var answer struct{ Alerts []alerting.Alert }
	err := c.call(ctx, http.MethodGet, "/api/v1/alerts?"+values.Encode(), nil, &answer)
	return answer.Alerts, err
}

func costValues(query ledger.BillQuery) url.Values {
	values := url.Values{}
	set(values, "by", string(query.By))
	set(values, "run", query.Run)
	set(values, "pipeline", query.Pipeline)
	set(values, "team", query.Team)
	setTime(values, "since", query.Since)
	setTime(values, "until", query.Until)
	return values
}

// ofRun is the path of what there is about a run.
func ofRun(run, what string, values url.Values) string {
	path := "/api/v1/runs/" + url.PathEscape(run) + "/" + what
	if len(values) > 0 {
		path += "?" + values.Encode()
	}
	return path
}

func setNumber(values url.Values, name string, value int) {
	if value != 0 {
		values.Set(name, strconv.Itoa(value))
	}
}

func setTime(values url.Values, name string, value time.Time) {
	if !value.IsZero() {
		values.Set(name, value.Format(time.RFC3339Nano))
	}
}
