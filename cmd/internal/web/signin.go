package web

import (
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
	"github.com/spillway-ml/spillway/cmd/internal/strangers"
)

// Addresses of the sign-in; an identity provider knows CallbackPath.
const (
	SignInPath   = "/sign-in"
	CallbackPath = "/sign-in/callback"
	DevicePath   = "/sign-in/device"
	stylePath    = "/sign-in/style.css"
)

const (
	// signInLife is how long somebody may take to sign in.
	signInLife = 10 * time.Minute
	// signInCookie names what a browser keeps meanwhile.
	signInCookie = "sign-in"
	formKind     = "application/x-www-form-urlencoded"
	// formPolicy is pagePolicy for a page with a form of our own.
	formPolicy = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; " +
		"script-src 'none'"
)

//go:embed signin
var signInFiles embed.FS

var signInPage = template.Must(template.ParseFS(signInFiles, "signin/page.html"))

// signInShown is what the page of a sign-in says.
type signInShown struct {
	Title, Text, Hint string
	Again, On         string // where a link to begin again leads, and one to go on; empty for none
	Ask               bool   // whether a code is asked for
	Code, Secret      string // of a command line that is to be confirmed
	From              string // the address that it has asked from; empty where that is not known
	Name, As          string // as whom
}

// pending is what a browser keeps of a sign-in that goes on, sealed.
type pending struct {
	signin.Begun

	To     string    `json:"to,omitempty"`     // where it goes then
	Device string    `json:"device,omitempty"` // the user code of the command line that it is for
	From   string    `json:"from,omitempty"`   // the address that it has asked from, sealed; empty where it was typed
	Until  time.Time `json:"until"`
}

// signInLimit bounds what is done for strangers who want to sign in: the provider is asked, or what servers share. One
// address may use up a small part of what all may.
type signInLimit struct {
	one *strangers.Limit
	all *rate.Limiter
}

// newSignInLimit allows for an office that comes to work, behind one address.
func newSignInLimit() signInLimit {
	return signInLimit{one: strangers.New(time.Second/2, 40), all: rate.NewLimiter(40, 400)}
}

// allow says whether something may be done for an address now.
func (l signInLimit) allow(from string, now time.Time) bool {
	return l.one.Allow(from, now) && l.all.AllowN(now, 1)
}

// mountSignIn has browsers sign in.
func (s *Server) mountSignIn() {
	if s.signIn == nil || s.sessions == nil {
		return
	}
	for pattern, handler := range map[string]http.HandlerFunc{
		"GET " + SignInPath: s.beginSignIn, "GET " + CallbackPath: s.finishSignIn, "GET " + DevicePath: s.beginDevice,
		"GET " + stylePath: func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, signInFiles, "signin/style.css")
		},
	} {
		s.mux.HandleFunc(pattern, handler)
		s.rules[pattern] = access.Rule{Needs: access.Anyone, MaxBody: loginLimit}
	}
	s.mux.HandleFunc("POST "+DevicePath, s.decideDevice)
	s.rules["POST "+DevicePath] = access.Rule{Needs: access.Anyone, Content: formKind, MaxBody: loginLimit}
}

// here is the address by which the browser, or command line, reaches this server; the guard has checked its host.
func here(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// showSignIn answers with the page of a sign-in.
func (s *Server) showSignIn(w http.ResponseWriter, r *http.Request, status int, shown signInShown) {
	header := w.Header()
	header.Set("Content-Security-Policy", formPolicy)
	header.Set("Referrer-Policy", "same-origin") // with none, browsers say of a form that its origin is "null"
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if err := signInPage.Execute(w, shown); err != nil && r.Context().Err() == nil {
		s.logger.DebugContext(r.Context(), "the page of a sign-in is cut", "error", err)
	}
}

// failSignIn says why somebody is not signed in.
func (s *Server) failSignIn(w http.ResponseWriter, r *http.Request, err error, again string) {
	said := signInError(err)
	level := slog.LevelWarn
	if said.Status == http.StatusBadRequest || said.Status == http.StatusTooManyRequests {
		level = slog.LevelDebug // nothing of it was genuine, or it is too much: whoever likes may have many of these
	}
	s.logger.Log(r.Context(), level, "nobody was signed in", "from", r.RemoteAddr, "reason", err)
	text, hint, _ := strings.Cut(said.Message, "; ")
	s.showSignIn(w, r, said.Status, signInShown{
		Title: "You are not signed in", Text: sentence(text), Hint: sentence(strings.Join(nonEmpty(hint, said.Hint), "; ")),
		Again: again,
	})
}

func nonEmpty(texts ...string) (kept []string) {
	for _, text := range texts {
		if text != "" {
			kept = append(kept, text)
		}
	}
	return kept
}

// sentence begins with a large letter and ends with a full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + strings.TrimSuffix(text[1:], ".") + "."
}

// signInError chooses the status of why somebody is not signed in, and what they are told. They may be strangers, so
// what is wrong with the provider, the way to it or this server is in the log alone.
func signInError(err error) *Error {
	answer := &Error{Status: http.StatusUnauthorized, Message: err.Error()}
	if own, is := errors.AsType[*Error](err); is {
		return own
	}
	for _, kept := range []error{signin.ErrUnreachable, signin.ErrServer} {
		if errors.Is(err, kept) {
			return &Error{
				Status: http.StatusBadGateway, Message: kept.Error(),
				Hint: "try again in a moment; the log of the server says what is wrong",
			}
		}
	}
	switch {
	case errors.Is(err, signin.ErrRefused):
		answer.Message, answer.Hint = "the identity provider refuses this sign-in", "sign in again"
	case errors.Is(err, signin.ErrNoRole), errors.Is(err, access.ErrDeviceDenied):
		answer.Status = http.StatusForbidden
	case errors.Is(err, access.ErrSessions), errors.Is(err, access.ErrDeviceTaken):
		answer.Status = http.StatusConflict
	case errors.Is(err, access.ErrUserCode), errors.Is(err, access.ErrDevice):
		answer.Status, answer.Hint = http.StatusBadRequest, "`spillway login` gives another one"
	case errors.Is(err, signin.ErrToken): // of which they are told what they, or the provider, have shown
	default:
		return statusOf(err)
	}
	return answer
}

// beginSignIn answers GET /sign-in: it leads the browser to the provider.
func (s *Server) beginSignIn(w http.ResponseWriter, r *http.Request) {
	s.lead(w, r, pending{To: localPath(r.URL.Query().Get("to"))})
}

// localPath is where a browser goes on this server; anything else is the first page. What is behind a # may be a code
// of somebody else.
func localPath(to string) string {
	at, err := url.Parse(to)
	if err != nil || at.Host != "" || at.Scheme != "" || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") ||
		strings.ContainsAny(to, "#\\\r\n\t") || strings.HasPrefix(to, SignInPath) {
		return "/"
	}
	return to
}

func (s *Server) lead(w http.ResponseWriter, r *http.Request, keeps pending) {
	err := s.slow(r)
	var address string
	var begun signin.Begun
	if err == nil {
		address, begun, err = s.signIn.Begin(r.Context(), here(r)+CallbackPath)
	}
	if err != nil {
		s.failSignIn(w, r, err, SignInPath)
		return
	}
	keeps.Begun, keeps.Until = begun, time.Now().Add(signInLife)
	text, err := json.Marshal(keeps)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	s.keys.Lend(w, r.TLS != nil, signInCookie, s.keys.SealText(signInCookie, text), signInLife)
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, address, http.StatusSeeOther)
}

// beginDevice answers GET /sign-in/device: it asks for the code of a command line, or leads the browser to the provider
// with it.
func (s *Server) beginDevice(w http.ResponseWriter, r *http.Request) {
	typed := r.URL.Query().Get("code")
	if typed == "" {
		s.showSignIn(w, r, http.StatusOK, signInShown{
			Title: "Let a command line in", Text: "Type the code that it shows.", Ask: true,
		})
		return
	}
	code, err := s.keys.CheckUserCode(typed, time.Now())
	if err != nil {
		s.failSignIn(w, r, err, DevicePath)
		return
	}
	from := r.URL.Query().Get("from")
	at := deviceLink(code, from)
	if r.URL.Query().Has("typed") {
		// A browser that follows what answers a form goes to no other site: the policy of the page holds on the whole way.
		s.showSignIn(w, r, http.StatusOK, signInShown{
			Title: "Let a command line in", Text: "Sign in to let in the command line that shows the code " + code + ".", On: at,
		})
		return
	}
	s.lead(w, r, pending{Device: code, From: from})
}

// deviceLink is where somebody signs in for a user code, which an address has asked for, sealed; empty where that is
// not known.
func deviceLink(code, from string) string {
	query := url.Values{"code": {code}}
	if from != "" {
		query.Set("from", from)
	}
	return DevicePath + "?" + query.Encode()
}

// sealFrom seals the address of a command line that is given a user code, so that whoever signs in for it is shown that
// address, and not one that somebody has put into the link.
func (s *Server) sealFrom(code string, r *http.Request) string {
	return s.keys.SealText(deviceFrom+code, []byte(addressOf(r)))
}

// deviceFrom begins what the sealed address of a command line is called.
const deviceFrom = "address of "

// addressOf is the address that a request comes from, without its port.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// errNotBegun says that a browser comes back that nobody waits for.
func errNotBegun() *Error {
	return Invalid("sign in again", "this sign-in was not begun in this browser, took longer than ten minutes, or has "+
		"been finished already")
}

// finishSignIn answers GET /sign-in/callback, to which the provider sends the browser back.
func (s *Server) finishSignIn(w http.ResponseWriter, r *http.Request) {
	keeps, err := s.comesBack(r)
	s.keys.Lend(w, r.TLS != nil, signInCookie, "", 0) // it counts once
	again := SignInPath
	if keeps.Device != "" {
		again = deviceLink(keeps.Device, keeps.From)
	}
	var signed signin.Signed
	if err == nil {
		signed, err = s.signIn.Finish(r.Context(), keeps.Begun, r.URL.Query().Get("code"))
	}
	if err != nil {
		s.failSignIn(w, r, err, again)
		return
	}
	if keeps.Device != "" {
		s.propose(w, r, keeps, signed)
		return
	}
	session := s.sessionOf(signed, access.WayPage, r)
	token, err := s.sessions.Make(r.Context(), session, time.Now())
	if err != nil {
		s.failSignIn(w, r, err, again)
		return
	}
	s.signedIn(r, session)
	s.keys.ShowSession(w, r.TLS != nil, token, session.Until)
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, keeps.To, http.StatusSeeOther)
}

// comesBack reads what the browser has kept, and checks that it comes back with that.
func (s *Server) comesBack(r *http.Request) (keeps pending, err error) {
	text, genuine := s.keys.UnsealText(signInCookie, s.keys.Lent(r, signInCookie))
	if !genuine || json.Unmarshal(text, &keeps) != nil || !time.Now().Before(keeps.Until) {
		return pending{}, errNotBegun()
	}
	query := r.URL.Query()
	if subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(keeps.State)) != 1 {
		return keeps, errNotBegun()
	}
	if err := s.slow(r); err != nil { // from here on the log tells what was wrong
		return keeps, err
	}
	// RFC 9207: who has more than one provider would else take the code of one to another.
	if issuer := query.Get("iss"); issuer != "" && issuer != s.signIn.Issuer() {
		return keeps, Invalid("sign in again", "the answer is of another identity provider, %.200q", issuer)
	}
	if refused := query.Get("error"); refused != "" {
		return keeps, &Error{
			Status: http.StatusForbidden,
			Message: strings.TrimSuffix("the identity provider refuses: "+oneLine(refused)+": "+
				oneLine(query.Get("error_description")), ": "),
			Hint: "sign in again, or ask whoever runs it",
		}
	}
	if query.Get("code") == "" {
		return keeps, Invalid("sign in again", "the identity provider has sent no code")
	}
	return keeps, nil
}

// oneLine is a text of a stranger as it is shown: one line of bounded length.
func oneLine(text string) string {
	const most = 200
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "")), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// slow refuses what would have too much be done for who is not signed in.
func (s *Server) slow(r *http.Request) error {
	if s.signInLimit.allow(r.RemoteAddr, time.Now()) {
		return nil
	}
	return &Error{
		Status: http.StatusTooManyRequests, Message: "too many sign in at once", Hint: "try again in a moment",
		RetryAfter: time.Second,
	}
}

// sessionOf is the session of who has signed in.
func (s *Server) sessionOf(signed signin.Signed, way string, r *http.Request) access.Session {
	return access.Session{
		Issuer: signed.Issuer, Subject: signed.Subject, Name: signed.Name, Role: signed.Role, Team: signed.Team,
		Way: way, From: r.RemoteAddr, Until: s.signIn.Until(signed, time.Now()).UTC().Truncate(time.Second),
		Fresh: signed.Fresh.UTC(), Refresh: signed.Refresh,
	}
}

// signedIn tells the log.
func (s *Server) signedIn(r *http.Request, session access.Session) {
	s.logger.InfoContext(r.Context(), "signed in", "who", session.Name, "issuer", session.Issuer, "subject",
		session.Subject, "role", session.Role, "team", session.Team, "way", session.Way, "from", r.RemoteAddr,
		"until", session.Until)
}

// propose asks who has signed in whether a command line is to be let in as them. They may have been led here by
// somebody else, so nothing is given before they have compared the code.
func (s *Server) propose(w http.ResponseWriter, r *http.Request, keeps pending, signed signin.Signed) {
	session := s.sessionOf(signed, access.WayCommandLine, r)
	secret, err := s.sessions.Propose(r.Context(), keeps.Device, session, time.Now())
	if err != nil {
		s.failSignIn(w, r, err, DevicePath)
		return
	}
	from, _ := s.keys.UnsealText(deviceFrom+keeps.Device, keeps.From) // empty where it is not genuine
	s.showSignIn(w, r, http.StatusOK, signInShown{
		Title: "Let a command line in?", Code: keeps.Device, Secret: secret, Name: signed.Name,
		As: roleOf(signed.Role, signed.Team), From: string(from),
	})
}

// roleOf says a role in words.
func roleOf(role, team string) string {
	if team == "" {
		return role
	}
	return role + " of team " + team
}

// decideDevice answers POST /sign-in/device: who has signed in lets a command line in, or does not.
func (s *Server) decideDevice(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.failSignIn(w, r, Invalid("", "the form cannot be read: %v", err), "")
		return
	}
	if err := s.slow(r); err != nil {
		s.failSignIn(w, r, err, "")
		return
	}
	let := r.PostForm.Get("answer") == "let"
	session, err := s.sessions.Decide(r.Context(), r.PostForm.Get("code"), r.PostForm.Get("secret"), let, time.Now())
	switch {
	case err != nil:
		s.failSignIn(w, r, err, "")
	case !let:
		s.showSignIn(w, r, http.StatusOK, signInShown{
			Title: "The command line was refused",
			Text: "It is not let in. If you did not start it yourself, somebody has sent you its link: tell whoever runs " +
				"this server.",
		})
	default:
		s.logger.InfoContext(r.Context(), "a command line is let in", "who", session.Name, "issuer", session.Issuer,
			"subject", session.Subject, "from", r.RemoteAddr)
		s.showSignIn(w, r, http.StatusOK, signInShown{
			Title: "The command line is let in", Text: "Go back to it; you may close this page.",
		})
	}
}
