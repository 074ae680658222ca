package edge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// natsPatience is how long NATS may take to greet.
	natsPatience = 5 * time.Second
	// maxGreeting bounds what it greets with, in bytes.
	maxGreeting = 32 << 10
)

// carry passes bytes between a client and NATS until one of them ends, or the port is closed.
func (p *Port) carry(client *tls.Conn) {
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), natsPatience)
	server, err := new(net.Dialer).DialContext(ctx, "tcp", p.options.NATS)
	cancel()
	if err != nil {
		p.options.Logger.Warn("NATS cannot be reached for a host", "error", err)
		return
	}
	defer func() { _ = server.Close() }()
	from := bufio.NewReader(server)
	if err := greet(server, from, client); err != nil {
		p.options.Logger.Debug("NATS did not greet a host", "error", err)
		return
	}
	var passing sync.WaitGroup
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	passing.Go(func() { defer end(); _, _ = io.Copy(server, client) })
	passing.Go(func() { defer end(); _, _ = io.Copy(client, from) })
	select {
	case <-over:
	case <-p.closed:
	}
	_, _ = client.Close(), server.Close() // whichever ended, the other has nobody to talk to
	passing.Wait()
}

// greet passes on the first line of NATS, in which it says what it is, and says in it that this is TLS: clients that
// want it would go away else. Other servers that it names are none of theirs.
func greet(server net.Conn, from *bufio.Reader, client io.Writer) error {
	if err := server.SetReadDeadline(time.Now().Add(natsPatience)); err != nil {
		return err
	}
	line, err := readLine(from)
	if err != nil {
		return err
	}
	if err := server.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	text, is := bytes.CutPrefix(line, []byte("INFO "))
	if !is {
		return fmt.Errorf("it said %.40q", line)
	}
	info := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&info); err != nil {
		return fmt.Errorf("read its greeting: %w", err)
	}
	info["tls_required"], info["tls_available"] = true, true
	delete(info, "connect_urls")
	delete(info, "ws_connect_urls")
	encoded, err := json.Marshal(info)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(client, "INFO %s\r\n", encoded)
	return err
}

// readLine reads one line of at most maxGreeting bytes.
func readLine(from *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := from.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxGreeting {
			return nil, errors.New("its greeting is too long")
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}
