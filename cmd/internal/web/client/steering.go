package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// Outlook returns what would be expected of a run under goal, and changes nothing. Nil asks about the goal in force.
func (c *Client) Outlook(ctx context.Context, run string, goal *predictor.Goal) (outlook predictor.Outlook, err error) {
	return outlook, c.call(ctx, http.MethodGet, ofRun(run, "outlook", goalValues(goal)), nil, &outlook)
}

// goalValues are the parameters of a goal; none of nil.
func goalValues(goal *predictor.Goal) url.Values {
	values := url.Values{}
	if goal != nil { // a zero goal is said too: nothing at all would be the goal in force
		values.Set("deadline_ns", strconv.FormatInt(int64(goal.Deadline), 10))
		values.Set("budget_picodollars", strconv.FormatInt(int64(goal.Budget), 10))
		if goal.Confidence > 0 {
			values.Set("confidence", strconv.FormatFloat(goal.Confidence, 'g', -1, 64))
		}
		set(values, "minimise", string(goal.Minimise))
	}
	return values
}

// Frontier returns every time and cost that a run could come to, or could have come to, under goal. Nil asks about the
// goal in force.
func (c *Client) Frontier(ctx context.Context, run string, goal *predictor.Goal) (answer whatif.Answer, err error) {
	return answer, c.call(ctx, http.MethodGet, ofRun(run, "frontier", goalValues(goal)), nil, &answer)
}

// PipelineFrontier is that of a run that could be started with an input; nil is one like those of earlier runs.
func (c *Client) PipelineFrontier(
	ctx context.Context, pipeline string, input json.RawMessage, goal predictor.Goal,
) (answer whatif.Answer, err error) {
	path := "/api/v1/pipelines/" + url.PathEscape(pipeline) + "/frontier"
	return answer, c.call(ctx, http.MethodPost, path, web.Coming{Input: input, Goal: goal}, &answer)
}

// SetGoal gives a run that goes on another goal and returns what is expected under it.
func (c *Client) SetGoal(ctx context.Context, run string, goal predictor.Goal) (outlook predictor.Outlook, err error) {
	return outlook, c.call(ctx, http.MethodPost, ofRun(run, "goal", nil), goal, &outlook)
}

// Retry starts a run again that has ended.
func (c *Client) Retry(ctx context.Context, run string, request web.Retry) (retried web.Retried, err error) {
	return retried, c.call(ctx, http.MethodPost, ofRun(run, "retry", nil), request, &retried)
}
