// Search runs in a worker, and browsers refuse workers to pages that were opened
// as files. There, the worker is a hidden frame that runs the same script.
if (location.protocol === "file:") {
  // A worker gets a copy of a message, after the code that sent it has ended. The
  // search box relies on it: an answer that comes at once makes it lose letters.
  const deliver = (message, receive) => {
    const data = structuredClone(message);
    setTimeout(() => receive(new MessageEvent("message", { data })), 0);
  };

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html>";
      this.started = new Promise((resolve, reject) => {
        this.frame.onload = () => {
          const scope = this.frame.contentWindow;
          scope.postMessage = (data) =>
            deliver(data, (event) => {
              this.dispatchEvent(event);
              this.onmessage?.(event);
            });
          const script = scope.document.createElement("script");
          script.src = url;
          script.onload = () => resolve(scope);
          script.onerror = reject;
          scope.document.body.append(script);
        };
      });
      this.started.catch((event) => this.onerror?.(event));
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.started.then((scope) =>
        deliver(data, (event) => scope.dispatchEvent(event)),
      );
    }

    terminate() {
      this.frame.remove();
    }
  };
}
