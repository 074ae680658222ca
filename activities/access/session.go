package access

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// sessionLife is how long a browser stays logged in after it was last seen, sessionRenewal how old its session is when
	// it is given a new one.
	sessionLife    = 7 * 24 * time.Hour
	sessionRenewal = 24 * time.Hour
	// loginLife is how long a code for a login may be used, and mostLogins how many of who has asked for them may wait to
	// be: nobody takes the place of another's.
	loginLife  = 10 * time.Minute
	mostLogins = 20
)

// SetSession logs the browser in that w is the answer to. It is the owner on every port of the engine until it has not
// been seen for a week: browsers send cookies to all ports of a host, which is why its name is of this state directory,
// and its value is not the token. No page of another site makes a browser send it, and no script reads it. Secure says
// that the browser came over TLS: it never sends the cookie otherwise, and none that it was given otherwise counts.
func (k *Keys) SetSession(w http.ResponseWriter, secure bool) { k.setSession(w, secure, time.Now()) }

func (k *Keys) setSession(w http.ResponseWriter, secure bool, now time.Time) {
	http.SetCookie(w, k.cookie(secure, k.session(now.Add(sessionLife)), int(sessionLife.Seconds())))
}

// cookie is that of a session, with what is shown for it.
func (k *Keys) cookie(secure bool, value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: k.sessionName(secure), Value: value, Path: "/", MaxAge: maxAge,
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure,
	}
}

// shownByCookie is what a browser shows for a session that is not the owner's; empty for nothing.
func (k *Keys) shownByCookie(r *http.Request) string {
	cookie, err := r.Cookie(k.sessionName(r.TLS != nil))
	if err != nil || !strings.HasPrefix(cookie.Value, sessionPrefix) {
		return ""
	}
	return cookie.Value
}

// hasSession says whether a request comes with a session of the owner, and renews one that is old.
func (k *Keys) hasSession(w http.ResponseWriter, r *http.Request, now time.Time) bool {
	secure := r.TLS != nil
	cookie, err := r.Cookie(k.sessionName(secure))
	if err != nil {
		return false
	}
	shown, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil || len(shown) != 8+sha256.Size {
		return false
	}
	until := time.Unix(int64(binary.BigEndian.Uint64(shown)), 0)
	if !same(cookie.Value, k.session(until)) || !now.Before(until) {
		return false
	}
	if until.Sub(now) < sessionLife-sessionRenewal {
		k.setSession(w, secure, now)
	}
	return true
}

// sessionName is that of the cookie. Another engine of this host has another, so that none logs the other out. Browsers
// take a name that begins with __Host- from its own host only, and over TLS (RFC 6265bis, section 4.1.3.2).
func (k *Keys) sessionName(secure bool) string {
	name := "spillway_" + hex.EncodeToString(k.derive("session name")[:4])
	if secure {
		return "__Host-" + name
	}
	return name
}

// session is the value of the cookie of a session that ends then.
func (k *Keys) session(until time.Time) string {
	stated := binary.BigEndian.AppendUint64(nil, uint64(until.Unix()))
	mac := hmac.New(sha256.New, k.derive("session"))
	mac.Write(stated)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(stated))
}

// Lend has the browser that w is the answer to keep something sealed for a while, under a name of this state directory.
// It is sent along when another site leads the browser here, as an identity provider does. A time of 0 takes it back.
func (k *Keys) Lend(w http.ResponseWriter, secure bool, name, sealed string, keepFor time.Duration) {
	cookie := k.cookie(secure, sealed, int(keepFor.Seconds()))
	if keepFor == 0 {
		cookie.MaxAge = -1
	}
	cookie.Name += "_" + name
	cookie.SameSite = http.SameSiteLaxMode
	http.SetCookie(w, cookie)
}

// Lent is what a browser keeps under a name; empty for nothing.
func (k *Keys) Lent(r *http.Request, name string) string {
	cookie, err := r.Cookie(k.sessionName(r.TLS != nil) + "_" + name)
	if err != nil {
		return ""
	}
	return cookie.Value
}

// Logins are codes with each of which one browser can log in, once, as who has asked for it. They are kept in memory
// only, so a link with one is worth nothing after ten minutes or a restart. The zero value has none; methods may be
// called concurrently.
type Logins struct {
	mu    sync.Mutex
	codes map[[sha256.Size]byte]login // guarded by mu: by the code's digest
}

// login is what a code is good for.
type login struct {
	until time.Time
	of    string // Who.Credential of who has asked for it
}

// Code returns a new code, which lets a browser in as who has this credential (Who.Credential); empty is the owner. Of
// who has many the oldest counts no more.
func (l *Logins) Code(of string) string {
	code, now := rand.Text(), time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	var own int
	var oldest [sha256.Size]byte
	for old, one := range l.codes {
		switch {
		case !now.Before(one.until):
			delete(l.codes, old)
		case one.of == of:
			if own++; own == 1 || one.until.Before(l.codes[oldest].until) {
				oldest = old
			}
		}
	}
	if own >= mostLogins {
		delete(l.codes, oldest)
	}
	if l.codes == nil {
		l.codes = map[[sha256.Size]byte]login{}
	}
	l.codes[sha256.Sum256([]byte(code))] = login{now.Add(loginLife), of}
	return code
}

// Of reports whether a code may be used to log in now and as who, and leaves it.
func (l *Logins) Of(code string) (of string, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, known := l.codes[sha256.Sum256([]byte(code))]
	return one.of, known && time.Now().Before(one.until)
}

// Redeem reports whether code may be used to log in now and as who, and takes it.
func (l *Logins) Redeem(code string) (of string, known bool) {
	digest := sha256.Sum256([]byte(code))
	l.mu.Lock()
	defer l.mu.Unlock()
	one, known := l.codes[digest]
	delete(l.codes, digest)
	return one.of, known && time.Now().Before(one.until)
}

// TokenSession is how long a browser stays logged in that has shown a token which was made for somebody, unless that is
// revoked before.
const TokenSession = sessionLife
