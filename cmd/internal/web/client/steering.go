package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// Outlook returns what would be expected of a run under goal, and changes nothing. Nil asks about the goal in force.
func (c *Client) Outlook(ctx context.Context, run string, goal *predictor.Goal) (outlook predictor.Outlook, err error) {
	values := url.Values{}
	if goal != nil { // a zero goal is said too: nothing at all would be the goal in force
		values.Set("deadline_ns", strconv.FormatInt(int64(goal.Deadline), 10))
		values.Set("budget_picodollars", strconv.FormatInt(int64(goal.Budget), 10))
		if goal.Confidence > 0 {
			values.Set("confidence", strconv.FormatFloat(goal.Confidence, 'g', -1, 64))
		}
		set(values, "minimise", string(goal.Minimise))
	}
	return outlook, c.call(ctx, http.MethodGet, ofRun(run, "outlook", values), nil, &outlook)
}

// SetGoal gives a run that goes on another goal and returns what is expected under it.
func (c *Client) SetGoal(ctx context.Context, run string, goal predictor.Goal) (outlook predictor.Outlook, err error) {
	return outlook, c.call(ctx, http.MethodPost, ofRun(run, "goal", nil), goal, &outlook)
}

// Retry starts a run again that has ended.
func (c *Client) Retry(ctx context.Context, run string, request web.Retry) (retried web.Retried, err error) {
	return retried, c.call(ctx, http.MethodPost, ofRun(run, "retry", nil), request, &retried)
}
