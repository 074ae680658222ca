// Package client calls the engine's HTTP API.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// callLimit bounds one call that is not a stream.
const callLimit = 30 * time.Second

// ErrUnreachable says that no engine answered.
var ErrUnreachable = errors.New("the engine does not answer")

// Client calls one engine. Its methods may be called concurrently. What the engine refuses comes back as a [web.Error];
// an engine that is not there as an error that wraps [ErrUnreachable].
type Client struct {
	at     atomic.Pointer[Place]
	locate func() (Place, error) // nil where the engine stays where it is
	http   *http.Client
	follow pace
}

// Place is where an engine's API is, such as "http://127.0.0.1:7474", and the token of its owner.
type Place struct{ Base, Token string }

// New returns a client of the engine whose API is at base, such as "http://127.0.0.1:7474", that shows the token of its
// owner (access.ReadToken). It connects at the first call, and shows the token nowhere else: make sure that the engine
// lives before.
func New(base, token string) *Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c := &Client{http: &http.Client{Transport: transport, CheckRedirect: stay}, follow: usualPace()}
	c.at.Store(&Place{Base: base, Token: token})
	return c
}

// Relocating returns a client of the engine at place that asks locate where the engine is each time that it connects to
// a stream: an engine that was started anew may listen elsewhere. Later calls go there too. While locate returns an
// error no stream is connected to, and the token is shown to nobody for one.
func Relocating(place Place, locate func() (Place, error)) *Client {
	c := New(place.Base, place.Token)
	c.locate = locate
	return c
}

// relocate looks for the engine again; it wraps [ErrUnreachable] when there is none.
func (c *Client) relocate() error {
	if c.locate == nil {
		return nil
	}
	place, err := c.locate()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	c.at.Store(&place)
	return nil
}

// Close closes connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Healthy returns nil when a run could be started now.
func (c *Client) Healthy(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, "/healthz", nil, nil)
}

// progressEvery is how often an engine that is starting is asked how far it has come.
const progressEvery = 500 * time.Millisecond

// Ready waits until the engine has caught up with what happened before it began, and tells waiting, which must not be
// nil, how far it has come. An engine in which something does not work is not waited for: it answers what it can.
func (c *Client) Ready(ctx context.Context, waiting func(progress string)) error {
	for {
		err := c.Healthy(ctx)
		yet, refused := errors.AsType[*web.Error](err)
		if refused && yet.RetryAfter == 0 {
			return nil
		}
		if !refused {
			return err
		}
		waiting(yet.Message)
		if !wait.For(ctx, progressEvery) {
			return ctx.Err()
		}
	}
}

// Stack describes the running engine.
func (c *Client) Stack(ctx context.Context) (stack web.Stack, err error) {
	return stack, c.call(ctx, http.MethodGet, "/api/v1/stack", nil, &stack)
}

// NewLogin returns a code with which one browser can log in (see web.Login).
func (c *Client) NewLogin(ctx context.Context) (code string, err error) {
	var login web.Login
	err = c.call(ctx, http.MethodPost, "/api/v1/logins", struct{}{}, &login)
	return login.Code, err
}

// Plan returns the plan in force.
func (c *Client) Plan(ctx context.Context) (plan predictor.Plan, err error) {
	return plan, c.call(ctx, http.MethodGet, "/api/v1/plan", nil, &plan)
}

// mostRuns is how many runs the engine answers at once.
const mostRuns = 1000

// Runs returns the runs that match, newest first, of as many pages as that takes. A Limit of 0 means the engine's
// default.
func (c *Client) Runs(ctx context.Context, query web.RunQuery) (runs []ledger.RunView, err error) {
	for wanted := query.Limit; ; query.Limit = wanted - len(runs) {
		page, err := c.RunPage(ctx, query)
		if err != nil {
			return nil, err
		}
		runs = append(runs, page.Runs...)
		if query.After = page.Next; page.Next.IsZero() || len(runs) >= wanted {
			return runs, nil
		}
	}
}

// RunPage returns one page of the runs that match, newest first: at most a thousand of them.
func (c *Client) RunPage(ctx context.Context, query web.RunQuery) (page ledger.Page, err error) {
	values := runValues(query)
	set(values, "cursor", query.After.String())
	if query.Limit > 0 {
		values.Set("limit", strconv.Itoa(min(query.Limit, mostRuns)))
	}
	var answer struct {
		Runs []ledger.RunView
		Next string
	}
	if err := c.call(ctx, http.MethodGet, "/api/v1/runs?"+values.Encode(), nil, &answer); err != nil {
		return ledger.Page{}, err
	}
	next, err := ledger.ParsePlace(answer.Next)
	if err != nil {
		return ledger.Page{}, fmt.Errorf("read the next of a page of runs: %w", err)
	}
	return ledger.Page{Runs: answer.Runs, Next: next}, nil
}

// RunTotals adds up all runs that match, of whichever page.
func (c *Client) RunTotals(ctx context.Context, query web.RunQuery) (totals ledger.RunTotals, err error) {
	values := runValues(query)
	values.Set("limit", "1")
	values.Set("totals", "true")
	var answer struct{ Totals ledger.RunTotals }
	err = c.call(ctx, http.MethodGet, "/api/v1/runs?"+values.Encode(), nil, &answer)
	return answer.Totals, err
}

// runValues say which runs match.
func runValues(query web.RunQuery) url.Values {
	values := url.Values{}
	set(values, "state", string(query.State))
	set(values, "pipeline", query.Pipeline)
	if !query.Since.IsZero() {
		values.Set("since", query.Since.Format(time.RFC3339Nano))
	}
	return values
}

// Run returns one run.
func (c *Client) Run(ctx context.Context, run string) (view ledger.RunView, err error) {
	return view, c.call(ctx, http.MethodGet, "/api/v1/runs/"+url.PathEscape(run), nil, &view)
}

// Decisions returns the decisions about one run, oldest first.
func (c *Client) Decisions(ctx context.Context, run string) ([]predictor.Decision, error) {
	var answer struct{ Decisions []predictor.Decision }
	err := c.call(ctx, http.MethodGet, "/api/v1/runs/"+url.PathEscape(run)+"/decisions", nil, &answer)
	return answer.Decisions, err
}

// History returns the recorded history of a run, for a replay.
func (c *Client) History(ctx context.Context, run string) (history json.RawMessage, err error) {
	return history, c.call(ctx, http.MethodGet, "/api/v1/runs/"+url.PathEscape(run)+"/history", nil, &history)
}

// Result returns the encoded result of a run that has succeeded.
func (c *Client) Result(ctx context.Context, run string) (result json.RawMessage, err error) {
	return result, c.call(ctx, http.MethodGet, "/api/v1/runs/"+url.PathEscape(run)+"/result", nil, &result)
}

// Cancel asks that a run ends.
func (c *Client) Cancel(ctx context.Context, run string) error {
	return c.call(ctx, http.MethodPost, "/api/v1/runs/"+url.PathEscape(run)+"/cancel", struct{}{}, nil)
}

// Publish triggers a pipeline.
func (c *Client) Publish(ctx context.Context, event web.Event) (published web.Published, err error) {
	return published, c.call(ctx, http.MethodPost, "/api/v1/events", event, &published)
}

// Bindings returns every binding.
func (c *Client) Bindings(ctx context.Context) ([]web.Binding, error) {
	var answer struct{ Bindings []web.Binding }
	err := c.call(ctx, http.MethodGet, "/api/v1/bindings", nil, &answer)
	return answer.Bindings, err
}

// Bind makes a binding.
func (c *Client) Bind(ctx context.Context, binding wire.Binding) (made web.Binding, err error) {
	return made, c.call(ctx, http.MethodPost, "/api/v1/bindings", binding, &made)
}

// Unbind removes a binding.
func (c *Client) Unbind(ctx context.Context, key string) error {
	return c.call(ctx, http.MethodDelete, "/api/v1/bindings?"+url.Values{"key": {key}}.Encode(), nil, nil)
}

// Dead returns the dead letters, oldest first.
func (c *Client) Dead(ctx context.Context, limit int) ([]web.DeadLetter, error) {
	var answer struct{ Dead []web.DeadLetter }
	err := c.call(ctx, http.MethodGet, "/api/v1/dead?limit="+strconv.Itoa(limit), nil, &answer)
	return answer.Dead, err
}

// Replay publishes one dead letter again, or all of them when sequence is 0, and returns what became of them.
func (c *Client) Replay(ctx context.Context, sequence uint64) (answer web.Replayed, err error) {
	body := map[string]any{"all": true}
	if sequence != 0 {
		body = map[string]any{"sequence": sequence}
	}
	err = c.call(ctx, http.MethodPost, "/api/v1/dead/replay", body, &answer)
	return answer, err
}

// Register serves the stored build whose executable is path.
func (c *Client) Register(ctx context.Context, path string) (app web.App, err error) {
	return app, c.call(ctx, http.MethodPost, "/api/v1/apps", map[string]string{"path": path}, &app)
}

// RegisterChain serves a chain whose files are packed.
func (c *Client) RegisterChain(ctx context.Context, packed chain.Chain) (app web.App, err error) {
	return app, c.call(ctx, http.MethodPost, "/api/v1/chains", packed, &app)
}

func set(values url.Values, name, value string) {
	if value != "" {
		values.Set(name, value)
	}
}

// call makes one request; body and target may be nil.
func (c *Client) call(ctx context.Context, method, path string, body, target any) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	response, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if target == nil {
		return nil
	}
	if err := json.Unmarshal(text, target); err != nil {
		return fmt.Errorf("the answer to %s %s does not decode: %w", method, path, err)
	}
	return nil
}

// send makes a request and returns a response of status 200, whose body the caller closes.
func (c *Client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode the request %s %s: %w", method, path, err)
		}
		reader = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.at.Load().Base+path, reader)
	if err != nil {
		return nil, fmt.Errorf("make the request %s %s: %w", method, path, err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return c.do(request)
}

// do makes a request and returns a response of status 200, whose body the caller closes.
func (c *Client) do(request *http.Request) (*http.Response, error) {
	request.Header.Set("Authorization", "Bearer "+c.at.Load().Token)
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	return nil, errors.Join(refusal(response), response.Body.Close())
}

// otherVersion is the hint where the engine does not have what this client asks for.
const otherVersion = "the engine is of another version than this program: stop it and start it again with this one"

// refusal reads the error that the engine answered.
func refusal(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	var answer struct{ Error json.RawMessage }
	refused := web.Error{Status: response.StatusCode}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		refused.RetryAfter = time.Duration(max(seconds, 0)) * time.Second
	}
	if json.Unmarshal(text, &answer) == nil && len(answer.Error) > 0 {
		if json.Unmarshal(answer.Error, &refused) != nil { // /healthz says it in one string
			_ = json.Unmarshal(answer.Error, &refused.Message)
		}
	}
	if refused.Status == http.StatusNotFound && web.SaysNoRoute(refused.Message) {
		refused.NoRoute, refused.Hint = true, otherVersion
	}
	if refused.Message == "" {
		refused.Message = "the engine answered " + response.Status
	}
	return &refused
}
