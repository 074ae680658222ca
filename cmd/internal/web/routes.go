package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// route is one line of the table that both the mux and the document are made of.
type route struct {
	method, path, summary string
	query                 []parameter
	// body is an example of the body, whose type is that of the body; nil for none. bodyKind is its content type.
	body     any
	bodyKind string
	// maxBody bounds the body, in bytes; 0 is bodyLimit.
	maxBody int64
	// needs is who may ask; of the zero value allows says who: viewers where it is a question, operators where it steers
	// runs, and else the owner alone.
	needs access.Caller
	// asks says that it changes nothing, whatever its method; steers that it starts or steers runs; owners that only the
	// owner may ask; silent that no line tells of it in the log.
	asks, steers, owners, silent bool
	// bearer says that the handler looks at the credential itself.
	bearer bool
	// always says that the route answers while the engine is starting: it tells how far that has come, or nothing of the
	// engine.
	always bool
	// answer is the type of the answer as JSON; nil when kinds says what it is instead.
	answer reflect.Type
	kinds  []string
	// messages are the types of the messages of a stream by name.
	messages map[string]reflect.Type
	// refusals are the statuses of answers that say why not, besides those that every route has.
	refusals []int
	handler  http.HandlerFunc
}

// asking is a route that answers with a T as JSON.
func asking[T any](s *Server, method, path, summary string, handle func(*http.Request) (T, error)) route {
	return route{method: method, path: path, summary: summary, answer: reflect.TypeFor[T](), handler: answer(s, handle)}
}

func (t route) with(query ...parameter) route {
	t.query = query
	return t
}

func (t route) taking(example any) route {
	t.body, t.bodyKind = example, "application/json"
	return t
}

func (t route) atAnyTime() route {
	t.always = true
	return t
}

func (t route) asksOnly() route {
	t.asks = true
	return t
}

func (t route) steering() route {
	t.steers = true
	return t
}

func (t route) needing(caller access.Caller) route {
	t.needs = caller
	return t
}

func (t route) ofOwners() route {
	t.owners = true
	return t
}

// allows is who may ask.
func (t route) allows() access.Caller {
	switch {
	case t.needs != access.Owner || t.owners:
		return t.needs
	case t.asks || t.method == http.MethodGet:
		return access.Viewer
	case t.steers:
		return access.Operator
	default:
		return access.Owner
	}
}

func (t route) refusing(statuses ...int) route {
	t.refusals = statuses
	return t
}

// routes is the table.
func (s *Server) routes(options Options) []route {
	routes := slices.Concat(s.stackRoutes(options), s.runRoutes(), s.accountRoutes(), s.eventRoutes(),
		s.appRoutes(options), s.spaceRoutes(), s.hostRoutes(), s.tokenRoutes(), s.sessionRoutes(),
		codecRoutes(options.Codec))
	return append(routes, asking(s, "GET", "/api/v1/openapi.json", "Describes this API.", s.openAPI).atAnyTime())
}

// codecRoutes are what Temporal calls a codec server, for its command line and for UIs that may ask here.
func codecRoutes(codec http.Handler) []route {
	if codec == nil {
		return nil
	}
	routes := []route{
		{
			method: "POST", path: "/api/v1/codec/decode",
			summary: "Decrypts payloads, and fetches those that were too large for a history, for Temporal's own tools.",
		},
		{method: "POST", path: "/api/v1/codec/encode", summary: "Encrypts payloads for Temporal's own tools."},
		{
			method: "POST", path: "/api/v1/codec/download",
			summary: "Fetches payloads that were too large for a history, for Temporal's own tools.",
		},
	}
	for i := range routes {
		r := &routes[i]
		r.body, r.bodyKind, r.maxBody, r.kinds = codecExample(), "application/json", codecLimit, []string{"application/json"}
		r.needs, r.asks, r.silent, r.handler = access.Operator, true, true, codec.ServeHTTP
	}
	return routes
}

const notFound, conflict, gone, unprocessable = http.StatusNotFound, http.StatusConflict, http.StatusGone,
	http.StatusUnprocessableEntity

const forbidden, badGateway = http.StatusForbidden, http.StatusBadGateway

var typeOfNothing = reflect.TypeFor[nothing]()

func (s *Server) stackRoutes(options Options) []route {
	routes := []route{
		{
			method: "GET", path: "/healthz", summary: "Says whether a run could be started now.",
			answer:  reflect.TypeFor[healthAnswer](),
			handler: s.health, needs: access.Anyone, always: true,
		},
		asking(s, "GET", "/api/v1/stack", "Describes the stack as it is now.", s.stack).atAnyTime(),
		asking(s, "GET", "/api/v1/plan", "Returns the plan in force.", s.plan),
		asking(s, "GET", "/api/v1/teams", "Says how the teams that were declared stand.", s.howTeamsStand),
		asking(s, "GET", "/api/v1/decisions", "Lists the decisions of the autoscaler, oldest first.", s.decisions).
			with(decisionsParameter),
		asking(s, "GET", "/api/v1/alerts", "Lists the latest alerts, newest first.", s.alerts).with(alertsParameter),
		asking(s, "POST", "/api/v1/logins", "Makes a code with which one browser can log in, once, within ten minutes.",
			s.newLogin).taking(nothing{}).atAnyTime().needing(access.Viewer),
		{
			method: "GET", path: "/api/v1/stream", summary: "Tells what changes as it happens.",
			query: []parameter{followedParameter, afterParameter},
			kinds: []string{"text/event-stream"}, messages: streamMessages(), handler: s.stream,
		},
	}
	if options.Metrics != nil {
		routes = append(routes, route{
			method: "GET", path: "/metrics", summary: "Returns the metrics for Prometheus.", kinds: []string{"text/plain"},
			handler: options.Metrics.ServeHTTP, needs: access.Scraper,
		})
	}
	return routes
}

func (s *Server) runRoutes() []route {
	goal := predictor.Goal{Deadline: 900e9, Confidence: 0.95, Budget: quantity.Money(2e12), Minimise: predictor.Cost}
	return []route{
		asking(s, "GET", "/api/v1/runs", "Lists runs, newest first.", s.runs).
			with(runsParameter, stateParameter, pipelineParameter, runsSinceParameter, cursorParameter, totalsParameter),
		asking(s, "GET", "/api/v1/runs/{run}", "Returns one run.", s.run).refusing(notFound),
		asking(s, "GET", "/api/v1/runs/{run}/decisions", "Lists the decisions about a run, oldest first.", s.decisions).
			with(decisionsParameter).refusing(notFound),
		asking(s, "GET", "/api/v1/runs/{run}/history",
			"Returns the recorded history of a run, in the form that Temporal's replayer reads.", s.history).refusing(notFound),
		asking(s, "GET", "/api/v1/runs/{run}/result", "Returns the whole result of a run that has succeeded.", s.result).
			refusing(notFound, conflict),
		{
			method: "GET", path: "/api/v1/runs/{run}/logs", summary: "Tells what the attempts of a run print.",
			query: []parameter{
				stageParameter, taskParameter, attemptParameter, printedParameter, fromParameter, tailParameter,
				followParameter,
			},
			kinds: []string{"text/event-stream"}, messages: logMessages(), refusals: []int{notFound}, handler: s.logs,
		},
		asking(s, "POST", "/api/v1/runs/{run}/cancel", "Asks that a run ends.", s.cancel).taking(nothing{}).
			refusing(notFound, conflict).steering(),
		asking(s, "GET", "/api/v1/runs/{run}/outlook",
			"Says what would be expected of a run under a goal; without a parameter, under the goal in force.", s.outlook).
			with(deadlineParameter, confidenceParameter, budgetParameter, minimiseParameter).refusing(notFound),
		asking(s, "GET", "/api/v1/runs/{run}/frontier", "Says every time and cost that a run could come to, or could "+
			"have come to, under a goal; without a parameter, under the goal in force.", s.frontier).
			with(deadlineParameter, confidenceParameter, budgetParameter, minimiseParameter).refusing(notFound, gone),
		asking(s, "POST", "/api/v1/pipelines/{pipeline}/frontier",
			"Says every time and cost that a run of a pipeline could come to that is not started yet.", s.pipelineFrontier).
			taking(Coming{Input: json.RawMessage(`{}`), Goal: goal}).refusing(notFound).asksOnly(),
		asking(s, "POST", "/api/v1/runs/{run}/goal", "Gives a run that goes on another goal, and says what is "+
			"expected under it.", s.setGoal).
			taking(goal).refusing(notFound, conflict, unprocessable).steering(),
		asking(s, "POST", "/api/v1/runs/{run}/retry", "Starts a run again that has ended, reusing what succeeded.", s.retry).
			taking(Retry{From: "score"}).refusing(notFound, conflict, gone).steering(),
	}
}

func (s *Server) accountRoutes() []route {
	return []route{
		asking(s, "GET", "/api/v1/runs/{run}/timeline", "Lays out the attempts of a run in time.", s.timeline).
			with(marksParameter).refusing(notFound, gone),
		asking(s, "GET", "/api/v1/runs/{run}/attempts", "Lists the attempts of a run by when they were scheduled.",
			s.attempts).
			with(stageParameter, outcomeParameter, offsetParameter, attemptsParameter).refusing(notFound, gone),
		asking(s, "GET", "/api/v1/runs/{run}/allocation", "Says what each stage of a run held and used over time.",
			s.allocation).with(pointsParameter).refusing(notFound, gone),
		asking(s, "GET", "/api/v1/runs/{run}/breakdown", "Says where the time of a run went.", s.breakdown).
			refusing(notFound, gone),
		asking(s, "GET", "/api/v1/runs/{run}/curves", "Returns what the tasks of a run reported as progress.", s.curves).
			refusing(notFound, gone),
		{
			method: "GET", path: "/api/v1/runs/{run}/sizes",
			summary: "Sets what was predicted of the attempts of a run beside what came.",
			query: []parameter{
				stageParameter, comparedParameter, drawnParameter, widthParameter, revisionParameter,
			},
			answer: reflect.TypeFor[sizesAnswer](), kinds: []string{"image/svg+xml"}, refusals: []int{notFound, gone},
			handler: s.sizes,
		},
		asking(s, "GET", "/api/v1/runs/{run}/arrivals",
			"Says how many tasks come at the stages of a run, of all runs, minute by minute, and how many are forecast.",
			s.arrivals).refusing(notFound),
		asking(s, "GET", "/api/v1/stages/measured",
			"Says what the attempts of a stage have shown, for comparing where it runs.", s.measured).
			with(measuredParameter).refusing(notFound),
		asking(s, "GET", "/api/v1/runs/{run}/trainings",
			"Says what the plans of a run's split trainings predicted, and what came.", s.trainings).refusing(notFound, gone),
		asking(s, "GET", "/api/v1/runs/{run}/tuning",
			"Says how the tunings of a run stand: their trials, the best of them, and what each rung came to.", s.tunings).
			refusing(notFound, gone),
		asking(s, "GET", "/api/v1/diff", "Compares two runs.", s.diff).with(firstParameter, secondParameter).
			refusing(notFound),
		{
			method: "GET", path: "/api/v1/cost", summary: "Says who spent what.",
			query: []parameter{
				byParameter, sinceParameter, untilParameter, runParameter, pipelineParameter, teamParameter, formatParameter,
			},
			answer: reflect.TypeFor[ledger.Bill](), kinds: []string{"text/csv"}, refusals: []int{notFound}, handler: s.cost,
		},
		asking(s, "GET", "/api/v1/prices", "Lists the prices in force.", s.prices),
	}
}

func (s *Server) eventRoutes() []route {
	event := Event{Pipeline: "digits", ID: "upload-7", Input: json.RawMessage(`{}`)}
	return []route{
		asking(s, "POST", "/api/v1/events", "Publishes an event, which starts a run.", s.publish).taking(event).
			steering(),
		asking(s, "GET", "/api/v1/bindings", "Lists which events start which pipelines.", s.bindings),
		asking(s, "POST", "/api/v1/bindings", "Makes a binding.", s.bind).
			taking(wire.Binding{Pipeline: "digits", Subject: "uploads.>", MaxRuns: 2}).steering(),
		asking(s, "DELETE", "/api/v1/bindings", "Removes a binding that was made here.", s.unbind).with(keyParameter).
			refusing(notFound).steering(),
		asking(s, "GET", "/api/v1/dead", "Lists the events that could not start a run, oldest first.", s.dead).
			with(deadParameter),
		asking(s, "POST", "/api/v1/dead/replay", "Publishes dead letters again.", s.replay).taking(replayBody{All: true}).
			refusing(notFound).steering(),
	}
}

func (s *Server) spaceRoutes() []route {
	return []route{
		asking(s, "POST", "/api/v1/collections", "Removes the artifacts that nothing needs any more, or says which would go.",
			s.collect).
			taking(collectionBody{DryRun: true}),
	}
}

func (s *Server) hostRoutes() []route {
	request := join.Request{Host: "gpu-1", Instance: "4XKEXAMPLE", Version: "v0.1.0", Platform: "linux/amd64"}
	joining := asking(s, "POST", "/api/v1/hosts/join",
		"Lets a host join, which shows as bearer what it joins with or its own token.", s.joinHost).taking(request).
		refusing(http.StatusUnauthorized, notFound, conflict, http.StatusTooManyRequests)
	joining.needs, joining.maxBody, joining.bearer, joining.silent = access.Anyone, joinLimit, true, true
	entering := asking(s, "POST", "/api/v1/servers/join",
		"Gives the keys of the stack to another server, which shows as bearer what servers join with.", s.joinServer).
		taking(join.ServerRequest{Server: "server-2", Version: "v0.1.0"}).
		refusing(http.StatusUnauthorized, notFound, conflict, http.StatusTooManyRequests)
	entering.needs, entering.maxBody, entering.bearer, entering.silent = access.Anyone, joinLimit, true, true
	return []route{
		entering,
		asking(s, "GET", "/api/v1/hosts", "Lists the hosts that have joined or have a lease.", s.hosts),
		joining,
		asking(s, "POST", "/api/v1/hosts/token", "Returns what a host or server joins with, or another one from now on.",
			s.joinToken).taking(joinTokenBody{Renew: true}).refusing(notFound),
		asking(s, "POST", "/api/v1/hosts/{host}/drain", "Has a host take no new work; what runs there goes on.",
			s.drainHost(true)).taking(nothing{}).refusing(notFound),
		asking(s, "POST", "/api/v1/hosts/{host}/undrain", "Has a host that was drained take work again.",
			s.drainHost(false)).taking(nothing{}).refusing(notFound),
		asking(s, "DELETE", "/api/v1/hosts/{host}", "Forgets a host that has joined: its token does not count any more.",
			s.removeHost).refusing(notFound, conflict),
	}
}

func (s *Server) tokenRoutes() []route {
	if s.issued == nil {
		return nil
	}
	return []route{
		asking(s, "GET", "/api/v1/tokens", "Lists for whom tokens were made.", s.tokens).ofOwners(),
		asking(s, "POST", "/api/v1/tokens", "Makes a token for somebody, with a role.", s.makeToken).
			taking(NewToken{Name: "ci", Role: "operator"}).refusing(conflict),
		asking(s, "DELETE", "/api/v1/tokens/{name}", "Has a token count no more.", s.revokeToken).refusing(notFound),
	}
}

// sessionRoutes let browsers and command lines in.
func (s *Server) sessionRoutes() []route {
	routes := []route{
		asking(s, "GET", "/api/v1/session", "Says who asks, and how to sign in.", s.session).atAnyTime(),
		{
			method: "POST", path: "/api/v1/session",
			summary: "Logs a browser in, with such a code or with a token: the answer sets a cookie.",
			body:    NewSession{Code: "2UF3T7NQZKEXAMPLE"}, maxBody: loginLimit, bodyKind: "application/json",
			refusals: []int{http.StatusUnauthorized, conflict}, handler: s.logIn,
		},
		{
			method: "DELETE", path: "/api/v1/session",
			summary: "Signs out: the session that was shown ends, and the answer takes the cookie back.", handler: s.signOut,
			refusals: []int{http.StatusUnauthorized, conflict}, bearer: true,
		},
	}
	for i := range routes {
		routes[i].needs, routes[i].always, routes[i].silent = access.Anyone, true, true
		if routes[i].answer == nil {
			routes[i].answer = typeOfNothing
		}
	}
	if s.sessions == nil {
		return routes
	}
	device := asking(s, "POST", "/api/v1/session/device", "Gives a command line codes with which it is let in once "+
		"somebody has signed in for it (RFC 8628).", s.newDevice).taking(nothing{}).
		refusing(notFound, http.StatusTooManyRequests, badGateway)
	await := asking(s, "POST", "/api/v1/session/device/token", "Makes the session of a command line that was let in.",
		s.awaitDevice).taking(WaitingDevice{DeviceCode: "EXAMPLE"}).refusing(notFound, forbidden, conflict)
	exchange := asking(s, "POST", "/api/v1/session/token",
		"Makes a session for an ID token of the identity provider, which lasts as long as that.", s.exchange).
		taking(ShownIDToken{IDToken: "eyJEXAMPLE"}).
		refusing(http.StatusUnauthorized, forbidden, notFound, http.StatusTooManyRequests, badGateway)
	for _, one := range []route{device, await, exchange} {
		one.needs, one.maxBody, one.silent = access.Anyone, idTokenLimit, true
		routes = append(routes, one)
	}
	return append(routes,
		asking(s, "GET", "/api/v1/sessions", "Lists who is signed in.", s.allSessions).ofOwners(),
		asking(s, "DELETE", "/api/v1/sessions/{name}", "Ends all sessions of a name or subject.", s.endSessions).
			refusing(notFound),
	)
}

func (s *Server) appRoutes(options Options) []route {
	routes := []route{
		asking(s, "POST", "/api/v1/apps", "Serves a build of the state directory.", s.register).
			taking(registerBody{Path: "/var/spillway/builds/digits@0123456789ab/digits"}).refusing(notFound),
		{
			method: "POST", path: "/api/v1/chains", summary: "Serves a chain of commands whose files are packed.",
			body:     chainShape{Name: "digits", Stages: []stageShape{{Name: "score", Script: "python score.py"}}},
			bodyKind: "application/json", answer: reflect.TypeFor[App](), refusals: []int{conflict},
			handler: answer(s, s.registerChain), steers: true,
		},
	}
	if options.Artifacts == nil {
		return routes
	}
	put := asking(s, "PUT", "/api/v1/artifacts", "Stores bytes and answers with their address once they are durable.",
		s.putArtifact).
		refusing(http.StatusInsufficientStorage)
	put.body, put.bodyKind, put.maxBody, put.steers, put.silent = []byte(nil), octets, maxArtifact, true, true
	return append(routes, put, route{
		method: "GET", path: "/api/v1/artifacts/{digest}", summary: "Returns the bytes of an artifact.",
		kinds: []string{octets}, refusals: []int{notFound}, handler: s.artifact,
	})
}

// mount makes the mux, which answers the routes, says of all else below /api/ why it is not there, and shows the page.
// Everybody of this machine may read the files of the page, which are the same everywhere: it asks the API for the
// rest.
func (s *Server) mount(options Options) {
	s.table, s.mux, s.rules = s.routes(options), http.NewServeMux(), map[string]access.Rule{}
	for _, route := range s.table {
		s.mux.HandleFunc(route.pattern(), s.checked(route))
		s.rules[route.pattern()] = access.Rule{
			Needs: route.allows(), Bearer: route.bearer, Content: route.bodyKind,
			MaxBody: cmp.Or(route.maxBody, bodyLimit), Upload: route.maxBody == maxArtifact,
		}
	}
	if options.Hosts != nil {
		for _, prefix := range []string{join.AskPrefix, join.BuildPrefix} {
			s.mux.Handle(prefix, options.Hosts)
			s.rules[prefix] = access.Rule{Hosts: true, MaxBody: maxArtifact, Upload: true}
		}
	}
	s.mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, s.missing(w.Header(), r))
	})
	s.mountSignIn()
	if options.Page == nil {
		return
	}
	s.mux.Handle("/", options.Page)
	for _, address := range options.Page.addresses() {
		pattern := http.MethodGet + " " + address
		if address == runAddress {
			s.mux.HandleFunc(pattern, s.runPage(options.Page))
		} else {
			s.mux.Handle(pattern, options.Page)
		}
		s.rules[pattern] = access.Rule{Needs: access.Anyone, MaxBody: bodyLimit}
	}
}

// runPageLimit is how long the page of a run waits to hear whether there is such a run. An engine that is starting does
// not know, and the page says so itself.
const runPageLimit = time.Second

// runPage answers for the page of a run: as not found where the owner asks and there is none. Nobody else is told which
// runs there are.
func (s *Server) runPage(page *Page) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if access.CallerOf(r.Context()) <= access.Viewer && s.hasNoRun(r.Context(), r.PathValue("run")) {
			page.withoutRun(w, r)
			return
		}
		page.ServeHTTP(w, r)
	}
}

// hasNoRun reports whether it is certain that there is no such run, now or in a moment.
func (s *Server) hasNoRun(ctx context.Context, run string) bool {
	ctx, cancel := context.WithTimeout(ctx, runPageLimit)
	defer cancel()
	if run == "" || s.ready(ctx) != nil {
		return false
	}
	_, err := s.find(ctx, run)
	refused, isRefusal := errors.AsType[*Error](err)
	return isRefusal && refused.Status == http.StatusNotFound && !refused.OnItsWay()
}

// pattern is what the mux knows the route by.
func (t route) pattern() string { return t.method + " " + t.path }

// pattern is that by which the mux answers r; empty when it has none. Nothing else says which route a request is for.
func (s *Server) pattern(r *http.Request) string {
	_, pattern := s.mux.Handler(r)
	return pattern
}

// readyLimit is how long a request waits for an engine that is starting. Most have caught up by then, and nobody has to
// ask twice.
const readyLimit = 5 * time.Second

// whole keeps the requests of a route waiting until the engine's answers are whole: one that knows half of what
// happened would say that there is no such run, or that one goes on which has ended.
func (s *Server) whole(t route) http.HandlerFunc {
	if t.always {
		return t.handler
	}
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyLimit)
		err := s.ready(ctx)
		cancel()
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		t.handler(w, r)
	}
}

// checked refuses queries that the route does not know, and runs that there cannot be, before it handles anything.
func (s *Server) checked(t route) http.HandlerFunc {
	t.handler = s.ofTeams(t)
	t.handler = s.audited(t)
	t.handler = s.whole(t)
	if !strings.HasPrefix(t.path, "/api/") {
		return t.handler
	}
	return func(w http.ResponseWriter, r *http.Request) {
		err := checkQuery(r.URL.Query(), t.query)
		if err == nil {
			err = checkRun(r.PathValue("run"))
		}
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		t.handler(w, r)
	}
}

// checkRun refuses what no run can be called: Temporal answers questions about such a name with failures of all kinds.
func checkRun(run string) error {
	const longest = 1000 // of Temporal
	if len(run) > longest || strings.IndexFunc(run, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		return NotFound("`spillway runs` lists them", "there is no run %.100q: names of runs have printable ASCII "+
			"characters, at most %d", run, longest)
	}
	return nil
}

// apiPlace says where the API is.
const apiPlace = "the API is at /api/v1"

// missing says why the API has nothing at an address: another version, another method, or nothing at all.
func (s *Server) missing(header http.Header, r *http.Request) error {
	version, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/"), "/")
	if number, isVersion := strings.CutPrefix(version, "v"); isVersion && version != "v1" {
		if number, err := strconv.ParseUint(number, 10, 32); err == nil {
			refusal := NotFound("ask for /api/v1/"+rest+", or upgrade the engine",
				"%s: this engine does not have version %d yet", apiPlace, number)
			if number < 1 {
				refusal = &Error{
					Status: gone, Message: fmt.Sprintf("%s: version %d is gone", apiPlace, number),
					Hint: "ask for /api/v1/" + rest,
				}
			}
			return refusal
		}
	}
	var methods []string
	for _, route := range s.table {
		asked := r.WithContext(r.Context()) // a copy
		asked.Method = route.method
		if s.pattern(asked) == route.pattern() {
			methods = append(methods, route.method)
		}
	}
	if len(methods) > 0 {
		allowed := strings.Join(methods, ", ")
		header.Set("Allow", allowed)
		return &Error{
			Status: http.StatusMethodNotAllowed, Message: fmt.Sprintf("%s takes no %s", r.URL.Path, r.Method),
			Hint: "it takes " + allowed,
		}
	}
	return NotFound(apiPlace+", and GET /api/v1/openapi.json describes it", noRoute+"%s %s", r.Method, r.URL.Path)
}
