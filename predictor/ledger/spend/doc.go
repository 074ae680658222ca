// Package spend keeps who spent what and when, to the picodollar and in bounded memory.
package spend
