"""The HTTP server: the page, WebRTC offers, WHIP."""
