package function

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"
)

const (
	// bodyStall is how long the next byte of a body may take.
	bodyStall = 30 * time.Second
	// bodyLimit is how long a whole body may take: callers are on this machine.
	bodyLimit = 5 * time.Minute
	// maxUnproven bounds the bodies that arrive at a time from callers of whom nothing is proven yet: 96 MB of payloads in memory, or 1 GB of
	// zips on disk. It does not bound those who sign the digest of their body as a header: that is verified before their body is read.
	maxUnproven = 16
)

// arrival is the body of a request on its way in. Nothing that a request says may be acted on before prove has returned nil.
type arrival struct {
	host      *Host
	request   *http.Request
	writer    http.ResponseWriter
	signature signature
	claimed   string // the digest with which the signature has been verified; "" when that waits for the body
	sum       hash.Hash
	end       time.Time
}

// arrive checks what can be known of a request before its body. The caller calls leave after success.
func (h *Host) arrive(w http.ResponseWriter, r *http.Request) (*arrival, error) {
	now := time.Now()
	s, err := parseSignature(r, now)
	if err != nil {
		return nil, err
	}
	a := &arrival{
		host: h, request: r, writer: w, signature: s, claimed: r.Header.Get(hashHeader),
		sum: sha256.New(), end: now.Add(bodyLimit),
	}
	if a.claimed != "" {
		if !s.verify(r, h.opts.Secret, a.claimed) {
			return nil, errSignature(wrongSignature)
		}
		return a, nil
	}
	timer := time.NewTimer(h.stall)
	defer timer.Stop()
	select {
	case h.unproven <- struct{}{}:
		return a, nil
	case <-timer.C:
		return nil, errBusy()
	case <-h.closing:
		return nil, errShutdown()
	}
}

// leave ends an arrival.
func (a *arrival) leave() {
	if a.claimed == "" {
		<-a.host.unproven
	}
}

// Read reads the body. A caller that sends nothing for too long gets an error that tells it so.
func (a *arrival) Read(p []byte) (int, error) {
	until := time.Now().Add(a.host.stall)
	if until.After(a.end) {
		until = a.end
	}
	allowBody(a.writer, until)
	n, err := a.request.Body.Read(p)
	a.sum.Write(p[:n])
	switch {
	case errors.Is(err, io.EOF):
		// The server reads on, to learn that the caller has gone: it may take as long as the function.
		allowBody(a.writer, time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, errSlow()
	case err != nil:
		return n, errContent("Could not read request body: " + err.Error())
	}
	return n, err
}

// prove reads what is left of the body, and returns nil if the whole request is the owner's.
func (a *arrival) prove() error {
	if _, err := io.Copy(io.Discard, io.LimitReader(a, 4*maxUploadBytes)); err != nil {
		return err
	}
	digest := hex.EncodeToString(a.sum.Sum(nil))
	if a.claimed != "" && a.claimed != digest || a.claimed == "" && !a.signature.verify(a.request, a.host.opts.Secret, digest) {
		return errSignature(wrongSignature)
	}
	return nil
}

// body returns the whole body of a request that is the owner's.
func (h *Host) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	a, err := h.arrive(w, r)
	if err != nil {
		return nil, err
	}
	defer a.leave()
	content, err := readAtMost(a, maxSyncBytes)
	if errors.Is(err, errTooLong) {
		return nil, errTooLarge(maxSyncBytes)
	}
	if err != nil {
		return nil, err
	}
	return content, a.prove()
}

// checkCaller refuses what no AWS client sends: requests of web pages, whose browser names their origin, and those to another name than
// this machine's, which a page can give to this machine's address (DNS rebinding).
func checkCaller(r *http.Request) error {
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return &apiError{status: http.StatusForbidden, code: "AccessDeniedException", message: "No web page may call the function host."}
	}
	if !isOwnHost(r) {
		return &apiError{
			status: http.StatusForbidden, code: "AccessDeniedException",
			message: fmt.Sprintf("The function host is not called %.80q: use the address that its engine gave.", r.Host),
		}
	}
	return nil
}

// isOwnHost reports whether the header Host names the port that r came to, on this machine.
func isOwnHost(r *http.Request) bool {
	name, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		return false
	}
	if local, known := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); known && port != fmt.Sprint(local.Port) {
		return false
	}
	address, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && address.Unmap().IsLoopback()
}

const wrongSignature = "The request signature does not match: sign the request as it is sent, body included, with the key of this host"

func errUnsigned() error {
	return &apiError{
		status: http.StatusForbidden, code: "MissingAuthenticationTokenException",
		message: "Missing Authentication Token: sign the request with " + algorithm + ", in the header Authorization, with the key of this host.",
	}
}

func errIncomplete(why string) error {
	return &apiError{status: http.StatusForbidden, code: "IncompleteSignatureException", message: "The request signature is incomplete: " + why + "."}
}

func errSignature(message string) error {
	return &apiError{status: http.StatusForbidden, code: "InvalidSignatureException", message: message + "."}
}

func errSlow() error {
	return &apiError{
		status: http.StatusRequestTimeout, code: "RequestTimeoutException",
		message: fmt.Sprintf("The body took too long: send the next byte within %v, and the whole within %v.", bodyStall, bodyLimit),
	}
}

func errBusy() error {
	return &apiError{
		status: http.StatusServiceUnavailable, code: "ServiceUnavailableException",
		message: "Too many requests arrive at a time: try again, or sign the header " + hashHeader + ", which needs no place among them.",
	}
}
