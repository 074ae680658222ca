package access

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Caller is who asks, by the credential that came with the request.
type Caller int

// Callers.
const (
	Owner    Caller = iota // Owner has shown the owner's token, a session, or a token that was made for an admin.
	Operator               // Operator has shown a token with which runs are started and steered.
	Viewer                 // Viewer has shown a token with which all is read.
	Scraper                // Scraper has shown the token of Prometheus.
	Anyone                 // Anyone has shown nothing, or had nothing to show.
	Host                   // Host has shown the token of a host that has joined, HostOfCaller; it ranks beside the others.
)

// Refusal is why a request is not answered.
type Refusal struct { //nolint:errname // a refusal is what it is called everywhere
	// Status is the HTTP status, 400 to 599.
	Status int
	// Message says what was wrong, and Hint what to do; the hint may be empty.
	Message, Hint string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Message }

// Advice returns the hint.
func (r *Refusal) Advice() string { return r.Hint }

// Guard stands before a port of the loopback interface, or one that speaks TLS. It refuses what pages of other origins
// and names that resolve here from elsewhere (DNS rebinding) send, who shows no credential, and bodies that are too
// large, stop coming or trickle; and gives up who takes nothing of an answer. The zero value refuses everybody.
type Guard struct {
	// Keys tell who is who; nil knows nobody, so that only what Needs leaves to Anyone is answered.
	Keys *Keys
	// Tokens are those that were made for others than the owner; nil for none.
	Tokens *Tokens
	// Sessions are those of who has signed in, or has shown such a token in a browser; nil for none.
	Sessions *Sessions
	// Names are the names and addresses by which the engine is reached over TLS, whatever the port; empty for none.
	Names []string
	// Hosts says of which host, that has joined, a token is; nil knows none. Their tokens count over TLS only.
	Hosts func(token string) (host string, known bool)
	// Rule is what is asked of a request; nil is the zero Rule of every one.
	Rule func(*http.Request) Rule
	// Patience is how long the next bytes of a body may take to come; 0 is 30 s. A body is to be whole after four times as
	// long, unless it is an upload, and a piece of an answer to be taken after twice as long.
	Patience time.Duration
	// Refuse answers a request that is refused; nil writes the message and the hint as text.
	Refuse func(http.ResponseWriter, *http.Request, *Refusal)
}

// Rule is what a Guard asks of a request. The zero value is for the owner alone and asks nothing else.
type Rule struct {
	// Needs is who may make it, and those before it in the order of callers may, too: the owner alone, operators, viewers,
	// Prometheus, or Anyone.
	Needs Caller
	// Hosts says that hosts may make it as well.
	Hosts bool
	// Bearer says that the handler looks at the credential itself, so that it is handed on.
	Bearer bool
	// Content is the content type that it must have; empty is any.
	Content string
	// MaxBody bounds its body, in bytes; 0 is no bound.
	MaxBody int64
	// Upload says that its body may take any time, as long as more of it comes.
	Upload bool
}

// Wrap returns a handler that answers what the guard admits as next does. It must be served by an http.Server, which
// says at which port a request came in. Next is not shown the credential; CallerOf tells it who asks.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(written http.ResponseWriter, r *http.Request) {
		patience := cmp.Or(g.Patience, bodyPatience)
		w, answered := watchAnswer(written, r, patience)
		defer answered()
		header := w.Header()
		header.Set("X-Content-Type-Options", "nosniff") // names, errors and logs may be anybody's HTML
		header.Set("Referrer-Policy", "no-referrer")
		var rule Rule
		if g.Rule != nil {
			rule = g.Rule(r)
		}
		watchBody(w, r, patience, rule.Upload)
		who, refusal := g.admit(w, r, rule)
		if refusal != nil {
			if r.ContentLength != 0 {
				header.Set("Connection", "close") // what is left of its body is not waited for
			}
			if refusal.Status == http.StatusUnauthorized {
				header.Set("WWW-Authenticate", `Bearer realm="spillway"`)
			}
			g.refuse(w, r, refusal)
			return
		}
		if g.Keys != nil && !rule.Bearer {
			r.Header.Del("Authorization")
		}
		if rule.MaxBody > 0 {
			r.Body = http.MaxBytesReader(w, r.Body, rule.MaxBody)
		}
		ctx := context.WithValue(r.Context(), callerKey{}, who)
		if who.counts != nil { // a stream goes on no longer than the token that it was asked for with
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(who.counts, cancel)()           //nolint:contextcheck // it is the life of the token
			if r.Method == http.MethodGet && rule.Needs != Anyone { // whoever ends their own session is told so
				w.counts = who.counts
			}
		}
		next.ServeHTTP(w, r.WithContext(ctx))
		if w.cut {
			panic(http.ErrAbortHandler) // nobody takes what there is of the answer for all of it
		}
	})
}

func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, refusal *Refusal) {
	if g.Refuse != nil {
		g.Refuse(w, r, refusal)
		return
	}
	text := refusal.Message
	if refusal.Hint != "" {
		text += "; " + refusal.Hint
	}
	http.Error(w, text, refusal.Status)
}

// callerKey is that of who asks, in the context of a request.
type callerKey struct{}

// asking is who asks: name is that of a Host, or for whom a token was made, or who has signed in, and team whose; empty
// for all others. The rest is what Who says.
type asking struct {
	caller     Caller
	name       string
	team       string
	role       string
	issuer     string
	subject    string
	session    string
	credential string
	until      time.Time
	counts     context.Context //nolint:containedctx // until a token or session ends that was made for somebody; else nil
}

// nobody is who is not known.
var nobody = asking{caller: Anyone}

// CallerOf returns who makes the request that ctx is of; Anyone where no Guard has looked.
func CallerOf(ctx context.Context) Caller {
	if asks, known := ctx.Value(callerKey{}).(asking); known {
		return asks.caller
	}
	return Anyone
}

// HostOfCaller returns the name of the host that makes the request that ctx is of; empty where CallerOf is not Host.
func HostOfCaller(ctx context.Context) string {
	asks, _ := ctx.Value(callerKey{}).(asking)
	if asks.caller != Host {
		return ""
	}
	return asks.name
}

// TeamOf returns the team of who makes the request that ctx is of; empty is the default team, and everybody's who has
// none.
func TeamOf(ctx context.Context) string {
	asks, _ := ctx.Value(callerKey{}).(asking)
	return asks.team
}

// NameOfCaller says in words who makes the request that ctx is of, for a line about what was changed.
func NameOfCaller(ctx context.Context) string {
	asks, known := ctx.Value(callerKey{}).(asking)
	switch {
	case !known || asks.caller == Anyone:
		return "anyone"
	case asks.caller == Host:
		return "host " + asks.name
	case asks.name != "":
		return asks.name
	case asks.caller == Owner:
		return "owner"
	default:
		return "metrics"
	}
}

// admit says who asks, or why the request is refused.
func (g *Guard) admit(w http.ResponseWriter, r *http.Request, rule Rule) (who asking, no *Refusal) {
	if refusal := g.admitHost(r); refusal != nil {
		return nobody, refusal
	}
	if refusal := admitOrigin(r); refusal != nil {
		return nobody, refusal
	}
	who, refusal := g.identify(w, r)
	switch {
	case who.caller == Host && (rule.Hosts || rule.Needs == Anyone), who.caller != Host && who.caller <= rule.Needs:
	case refusal != nil:
		return nobody, refusal
	case who.caller == Host:
		return nobody, &Refusal{
			http.StatusForbidden, "the token of a host is for what hosts need, and nothing else",
			"ask with the owner's token",
		}
	default:
		return nobody, tooLittle(who.caller, rule.Needs)
	}
	if refusal := admitContent(r, rule.Content); refusal != nil {
		return nobody, refusal
	}
	if rule.MaxBody > 0 && r.ContentLength > rule.MaxBody {
		return nobody, TooLarge(rule.MaxBody)
	}
	return who, nil
}

// tooLittle is the refusal of who may make other requests than this one, with the least role that may.
func tooLittle(caller, needs Caller) *Refusal {
	hint := "ask with an admin's, or with the one in the file " + TokenFile + " of the state directory"
	if needs == Operator {
		hint = "ask with an operator's"
	}
	switch caller {
	case Viewer:
		return &Refusal{http.StatusForbidden, "a viewer's token reads, and changes nothing", hint}
	case Operator:
		return &Refusal{http.StatusForbidden, "an operator's token starts and steers runs, and nothing else", hint}
	default:
		return &Refusal{
			http.StatusForbidden, "the token of Prometheus reads /metrics and nothing else",
			"show the token in the file " + TokenFile + " of the state directory",
		}
	}
}

// admitHost refuses a request that was made to another name than those under which its listener is reached, and where
// that is of the loopback interface, to another port.
func (g *Guard) admitHost(r *http.Request) *Refusal {
	if r.TLS != nil {
		return g.admitName(r)
	}
	local, known := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !known {
		return &Refusal{Status: http.StatusForbidden, Message: "the request came through no port of this machine"}
	}
	name, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		name, port = strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]"), "80"
	}
	if port == strconv.Itoa(local.Port) && isLoopback(name) {
		return nil
	}
	return &Refusal{
		http.StatusForbidden, fmt.Sprintf("this port is for this machine only, and the host %.100q is not its loopback name",
			r.Host),
		fmt.Sprintf("use http://127.0.0.1:%d", local.Port),
	}
}

// admitName refuses a request over TLS to a name that is none of the engine's. The port is whatever leads here.
func (g *Guard) admitName(r *http.Request) *Refusal {
	name, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]")
	}
	if slices.ContainsFunc(g.Names, func(own string) bool { return strings.EqualFold(own, name) }) || g.ofHost(r) {
		return nil
	}
	return &Refusal{
		http.StatusMisdirectedRequest, fmt.Sprintf("the engine is not called %.100q", name),
		"use a name that it was started with (--advertise)",
	}
}

// ofHost says whether a host asks that has joined. It asks whichever server of the stack it reaches by the name of the
// one that it has joined, which may be gone; no page that another name has led here knows its token.
func (g *Guard) ofHost(r *http.Request) bool {
	token, given := Bearer(r.Header.Get("Authorization"))
	if !given || g.Hosts == nil {
		return false
	}
	_, known := g.Hosts(token)
	return known
}

func isLoopback(name string) bool {
	if strings.EqualFold(name, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(name)
	return err == nil && address.IsLoopback()
}

// admitOrigin refuses what a page of another origin makes a browser send. That its user follows a link from there is no
// such thing.
func admitOrigin(r *http.Request) *Refusal {
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != scheme+r.Host {
		return &Refusal{Status: http.StatusForbidden, Message: fmt.Sprintf("pages of %.100q may not ask here", origin)}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none": // no browser, our own page, or what its user has typed
		return nil
	default:
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if reads && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
			return nil
		}
		return &Refusal{
			Status:  http.StatusForbidden,
			Message: fmt.Sprintf("pages of another site may not ask here (Sec-Fetch-Site: %.100q)", site),
		}
	}
}

// identify says who asks; where that is Anyone, the refusal is for who must be more.
func (g *Guard) identify(w http.ResponseWriter, r *http.Request) (who asking, no *Refusal) {
	const advice = "in a browser, open the link that `spillway open` prints; elsewhere send the header \"Authorization: " +
		"Bearer TOKEN\" with the token " +
		"in the file " + TokenFile + " of the state directory"
	if g.Keys == nil {
		return nobody, &Refusal{http.StatusUnauthorized, "nobody may ask here", ""}
	}
	shown, given := Bearer(r.Header.Get("Authorization"))
	switch {
	case given && g.Keys.IsToken(shown):
		return asking{caller: Owner}, nil
	case given && g.Keys.IsMetricsToken(shown):
		return asking{caller: Scraper}, nil
	case given && strings.HasPrefix(shown, sessionPrefix):
		return g.ofSession(r, shown, "`spillway login` signs in again")
	case given:
		if who, known := g.Tokens.of(shown); known {
			return who, nil
		}
		if g.Hosts != nil && r.TLS != nil {
			if host, known := g.Hosts(shown); known {
				return asking{caller: Host, name: host}, nil
			}
		}
		return nobody, &Refusal{
			http.StatusUnauthorized, "the credential is not one of this engine's state directory",
			"show the token in the file " + TokenFile + " of that directory",
		}
	case g.Keys.shownByCookie(r) != "":
		return g.ofSession(r, g.Keys.shownByCookie(r), "sign in again")
	case g.Keys.hasSession(w, r, time.Now()):
		return asking{caller: Owner}, nil
	default:
		return nobody, &Refusal{http.StatusUnauthorized, "no credential was shown", advice}
	}
}

// ofSession says whose session is shown.
func (g *Guard) ofSession(r *http.Request, shown, advice string) (who asking, no *Refusal) {
	who, known := g.Sessions.of(r.Context(), shown, time.Now())
	if !known {
		return nobody, &Refusal{
			http.StatusUnauthorized, "the session has ended: its time is over, or it was signed out or revoked", advice,
		}
	}
	return who, nil
}

// Bearer returns the token in the value of an Authorization header (RFC 6750), or in gRPC's metadata. Given is true for
// every kind of authorization, because it means to be one.
func Bearer(authorization string) (token string, given bool) {
	if kind, token, _ := strings.Cut(authorization, " "); strings.EqualFold(kind, "Bearer") {
		return strings.TrimSpace(token), true
	}
	return "", authorization != ""
}

func admitContent(r *http.Request, wanted string) *Refusal {
	given := r.Header.Get("Content-Type")
	if kind, _, err := mime.ParseMediaType(given); wanted == "" || err == nil && kind == wanted {
		return nil
	}
	return &Refusal{
		http.StatusUnsupportedMediaType, fmt.Sprintf("the content type %.100q is not %s", given, wanted),
		"send the header Content-Type: " + wanted,
	}
}

// Limits of what a client may hold open.
const (
	headerPatience = 10 * time.Second
	idlePatience   = 2 * time.Minute
	maxHeader      = 64 << 10 // bytes: browsers send the cookies of every port of the host
)

// NewServer returns a server of handler that gives up connections on which no header comes for long, or none at all. It
// logs what it says of broken connections at debug level. Answers may take any time.
func NewServer(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: headerPatience, IdleTimeout: idlePatience, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
