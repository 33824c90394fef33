// Search runs in a worker, and browsers refuse workers to pages that were opened
// as files. There, the worker is a hidden frame that runs the same script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html>";
      this.started = new Promise((resolve, reject) => {
        this.frame.onload = () => {
          const scope = this.frame.contentWindow;
          scope.postMessage = (data) => {
            const event = new MessageEvent("message", { data });
            this.dispatchEvent(event);
            this.onmessage?.(event);
          };
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
        scope.dispatchEvent(new MessageEvent("message", { data })),
      );
    }

    terminate() {
      this.frame.remove();
    }
  };
}
