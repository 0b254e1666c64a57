-- Which message a list gives next. A batch runs as long as its longest job, so jobs of like step counts
-- should share one: first the head of the list, then of its next AHEAD times as many messages as pictures
-- are wanted the most alike: the longest that makes the batch no longer, else the shortest, of equals the
-- older. As the head goes first, a job is passed over by at most as many batches as there are jobs before it.
local AHEAD = 4
local READ = 512  -- messages a claim looks at in all, or it would keep everybody else waiting
local MOST = 1e6  -- of anything in a header: anybody may write one, and JSON knows no infinity

-- A number that a message has among its headers, found without opening it.
local function header(message, name)
  local _, colon = string.find(message, '"' .. name .. '":', 1, true)
  local number = colon and tonumber(string.match(message, '^ ?(%d+)', colon + 1))
  return number and math.min(number, MOST)
end

local function steps_of(message, batch) return header(message, 'steps') or batch.usual end

-- The next messages of a list, the shortest first, of equals the older last.
local function look_ahead(list, batch)
  local window = math.min(AHEAD * batch.pictures, math.ceil(READ / batch.lists))
  local ahead = {}
  for place, message in ipairs(redis.call('LRANGE', list, -window, -1)) do
    ahead[place] = {message = message, place = place, steps = steps_of(message, batch)}
  end
  table.sort(ahead, function(a, b)
    return a.steps < b.steps or (a.steps == b.steps and a.place < b.place)
  end)
  return ahead
end

local function most_alike(ahead, longest)
  local at, enough = #ahead, math.max(longest, ahead[1].steps)
  while ahead[at].steps > enough do at = at - 1 end
  return table.remove(ahead, at).message
end

-- `batch.ahead`: what was looked at, by list; nothing where all was alike so far. A suspect among it
-- waits until it is the head: met sooner, it would end the batch that others have a place in.
local function draw(list, batch)
  local ahead = batch.ahead[list]
  if ahead and not ahead[1] and steps_of(redis.call('LINDEX', list, -1), batch) ~= batch.longest then
    ahead = look_ahead(list, batch)
  end
  batch.ahead[list] = ahead or {}
  while ahead and ahead[1] do
    local message = most_alike(ahead, batch.longest)
    if not batch.is_suspect(message) then
      redis.call('LREM', list, -1, message)
      return message
    end
  end
  return redis.call('RPOP', list)
end
