package hosts

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/strangers"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// credential is what who asks has shown: the join secret, or the host's own token.
type credential struct{ secret, token bool }

// admit says why a host may not join that has shown that it may; nil where it may. Occupied says that another instance
// of its name has a lease.
func admit(request join.Request, o Options, occupied bool, now time.Time) error {
	if request.Instance == "" || request.Platform == "" {
		return web.Invalid("send instance and platform", "the host does not say which start of it this is, or for what its "+
			"program was built")
	}
	if request.Host == o.Own {
		return web.Conflict("choose another with --name", "host %s is the server's own", request.Host)
	}
	if err := join.CheckVersions(request.Version, o.Version); err != nil {
		return web.Conflict("both may be one minor version apart", "%v", err)
	}
	if err := join.CheckClocks(request.At, now); err != nil {
		return web.Conflict("what happens is ordered by when it did", "%v", err)
	}
	if occupied {
		return &web.Error{
			Status: http.StatusConflict, RetryAfter: loop.Lease,
			Message: "a host called " + request.Host + " is at work",
			Hint: "if it is this one that was just killed, ask again in " + loop.Lease.String() +
				"; if it is another machine, choose another name with --name, and give it a state directory of its own",
		}
	}
	return nil
}

// older refuses an agent that shows less than the one before it: who has stolen the token of a host could else tell of
// attempts of others.
func older(request join.Request) error {
	return &web.Error{
		Status: http.StatusUnauthorized, // an agent that has the token to join with as well shows that one then
		Message: fmt.Sprintf("the agent of host %s is of version %s, which does not show which attempts it was given, and "+
			"the one before it did", request.Host, request.Version),
		Hint: "bring the agent back to the version that it had, or join it anew with the token that `spillway hosts token` " +
			"prints",
	}
}

// entered is the entry of a host once it has joined with what it has shown, or why it may not. Alive says that a host
// of its name has a lease. Without a membership its token is to be made anew.
func entered(
	next member, known bool, shown credential, request join.Request, o Options, alive bool, now time.Time,
) (member, error) {
	itself := known && next.Instance == request.Instance
	// Only its own token vouches for what it says of its former self.
	follows := known && shown.token && request.Former != "" && request.Former == next.Instance
	if next.Proves && !request.Proves && shown.token {
		return next, older(request)
	}
	if err := admit(request, o, alive && !itself && !follows, now); err != nil {
		return next, err
	}
	next.Name, next.Instance, next.Version, next.Platform = request.Host, request.Instance, request.Version,
		request.Platform
	next.Capacity, next.Seen, next.Proves = request.Capacity, now, request.Proves
	next.Stopped = time.Time{}
	if !shown.token {
		next.Joined = now
	}
	// One that cannot tell that the instance before it has ended may be on a copy of that one's directory: it has the
	// token alone from now on, and the other, if it lives, is cut off.
	if !shown.token || !itself && !follows {
		next.Membership = ""
	}
	return next, nil
}

func unknown(name string) error {
	return web.NotFound("`spillway hosts` lists them", "there is no host %.100q that has joined", name)
}

func stranger() error {
	return &web.Error{
		Status: http.StatusUnauthorized,
		Message: "the token is not one to join with: it was made anew since, the host was removed, or another machine has " +
			"joined with a copy of its state directory",
		Hint: "take it from `spillway hosts token` on the server",
	}
}

// TooMany refuses an address that has shown too many; the command prints the right token.
func TooMany(command string) error {
	return &web.Error{
		Status: http.StatusTooManyRequests, RetryAfter: strangerPause,
		Message: "too many wrong tokens came from this address",
		Hint:    "wait a minute, and take the token from `" + command + "` on the server",
	}
}

const (
	// strangerPause is how often one address may show a wrong token in the long run, and strangerBurst how often at once.
	strangerPause = 10 * time.Second
	strangerBurst = 5
)

// NewStrangers bounds how often one address may show a wrong token.
func NewStrangers() *strangers.Limit { return strangers.New(strangerPause, strangerBurst) }
